/* The system-call filter of sandboxed commands. Included by zygote.c only.
 *
 * A list of what is refused, not of what is allowed: agents run whatever the host has installed. Refused is what reaches
 * the kernel's rarely used corners, what could make a new namespace (and so new capabilities), what could touch the
 * sandbox's own PID 1, and memory that neither RLIMIT_AS nor the tmpfs quota would count.
 */
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>

#if defined(__x86_64__)
#define NATIVE_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define NATIVE_ARCH AUDIT_ARCH_AARCH64
#else
#error "trajmill's sandbox knows x86-64 and aarch64 only"
#endif

static const int refused_calls[] = {
    /* mounts and roots */
    __NR_mount, __NR_umount2, __NR_pivot_root, __NR_chroot, __NR_move_mount, __NR_open_tree, __NR_fsopen, __NR_fsconfig,
    __NR_fsmount, __NR_fspick, __NR_mount_setattr, __NR_swapon, __NR_swapoff, __NR_quotactl, __NR_open_by_handle_at,
    __NR_name_to_handle_at, __NR_fanotify_init,
    /* namespaces (clone is checked by its flags below) */
    __NR_unshare, __NR_setns,
    /* other processes' memory and descriptors: ends of PID 1's socket are in there */
    __NR_ptrace, __NR_process_vm_readv, __NR_process_vm_writev, __NR_process_madvise, __NR_kcmp, __NR_pidfd_getfd,
    /* kernel subsystems with a long record of holes, or with state that no namespace divides */
    __NR_bpf, __NR_perf_event_open, __NR_userfaultfd, __NR_io_uring_setup, __NR_io_uring_enter, __NR_io_uring_register,
    __NR_keyctl, __NR_add_key, __NR_request_key, __NR_syslog, __NR_acct,
    __NR_kexec_load, __NR_init_module, __NR_finit_module, __NR_delete_module, __NR_reboot,
    __NR_vhangup, __NR_mbind, __NR_set_mempolicy, __NR_migrate_pages, __NR_move_pages,
    /* clocks and names */
    __NR_settimeofday, __NR_clock_settime, __NR_clock_adjtime, __NR_adjtimex, __NR_sethostname, __NR_setdomainname,
    /* memory that no quota of a sandbox without a cgroup would count */
    __NR_memfd_create,
    /* System V IPC and message queues: all sandboxes of a zygote share a namespace for them, so nobody may use it */
    __NR_shmget, __NR_shmat, __NR_shmctl, __NR_shmdt, __NR_msgget, __NR_msgsnd, __NR_msgrcv, __NR_msgctl, __NR_semget,
    __NR_semop, __NR_semtimedop, __NR_semctl, __NR_mq_open, __NR_mq_unlink, __NR_mq_timedsend, __NR_mq_timedreceive,
    __NR_mq_notify, __NR_mq_getsetattr,
#ifdef __NR_memfd_secret
    __NR_memfd_secret,
#endif
#ifdef __NR_kexec_file_load
    __NR_kexec_file_load,
#endif
#ifdef __NR_quotactl_fd
    __NR_quotactl_fd,
#endif
#ifdef __NR_open_tree_attr
    __NR_open_tree_attr,
#endif
#ifdef __x86_64__
    __NR_iopl, __NR_ioperm, __NR_modify_ldt, __NR_ustat, __NR_sysfs, __NR_uselib,
#endif
    /* counted for the whole host (aio), or against the user who makes the sandboxes too (inotify, which moreover tells
     * what others do with the files of /usr): one sandbox could use them up for all */
    __NR_io_setup, __NR_inotify_init1,
#ifdef __NR_inotify_init
    __NR_inotify_init,
#endif
    /* by number, which is the same on every machine: headers may be older than the kernel */
    448 /* process_mrelease */, 450 /* set_mempolicy_home_node */, 457 /* statmount */, 458 /* listmount */,
    467 /* open_tree_attr */,
};
/* Extended attributes: overlayfs takes user.overlay.* in a layer for its own marks, and a fork would miss files. */
static const int unsupported_calls[] = {__NR_setxattr, __NR_lsetxattr, __NR_fsetxattr, 463 /* setxattrat */};
/* Flushing the host's disks: nothing in here lies on one. */
static const int ignored_calls[] = {__NR_sync, __NR_syncfs};
/* In an idle sandbox: without a cpu cgroup the kernel may schedule each session as a group of full weight. */
static const int ignored_when_idle[] = {__NR_setsid};
/* In a sandbox of one NUMA node: its processors are the only ones it may have. */
static const int ignored_when_bound[] = {__NR_sched_setaffinity};

#define NEW_NAMESPACES \
    (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET)
#define ARG(n) (offsetof(struct seccomp_data, args) + 8 * (n)) /* low half: both machines are little-endian */
#define LOAD(offset) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (offset))
#define IF_EQ(value, yes, no) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (value), (yes), (no))
#define RETURN(action) BPF_STMT(BPF_RET | BPF_K, (action))
#define FAIL_WITH(code) RETURN(SECCOMP_RET_ERRNO | (code))

enum { CALLS = sizeof refused_calls / sizeof *refused_calls, HEAD = 112,
       LISTED = CALLS + (sizeof unsupported_calls + sizeof ignored_calls + sizeof ignored_when_idle + sizeof ignored_when_bound) / sizeof(int) };
static struct sock_filter filter[HEAD + 2 * LISTED + 1];
static struct sock_fprog program = {.filter = filter};

static struct sock_filter *add_calls(struct sock_filter *at, const int *calls, int count, int error) {
    for (int i = 0; i < count; i++) {
        *at++ = (struct sock_filter)IF_EQ(calls[i], 0, 1);
        *at++ = (struct sock_filter)FAIL_WITH(error);
    }
    return at;
}

/* Once, in the zygote: PID 1s only read it. */
static void prepare_filter(int bound) {
    const struct sock_filter head[] = {
        LOAD(offsetof(struct seccomp_data, arch)),
        IF_EQ(NATIVE_ARCH, 1, 0),
        FAIL_WITH(ENOSYS), /* 32-bit calls have other numbers: refuse them all */
        LOAD(offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1),
        FAIL_WITH(ENOSYS), /* x32 */
        IF_EQ(__NR_clone3, 0, 1),
        FAIL_WITH(ENOSYS), /* its flags lie in memory, out of a filter's sight; libc falls back to clone */
        IF_EQ(__NR_clone, 0, 4),
        LOAD(ARG(0)),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, NEW_NAMESPACES, 0, 1),
        FAIL_WITH(EPERM),
        RETURN(SECCOMP_RET_ALLOW),
        IF_EQ(__NR_prlimit64, 0, 11), /* of itself only: PID 1 may have the same uid on a rootless host */
        LOAD(ARG(0)),
        IF_EQ(0, 1, 0),
        FAIL_WITH(EPERM),
        LOAD(ARG(1)),
        IF_EQ(RLIMIT_CORE, 0, 5), /* stays 1: see give_up_rights */
        LOAD(ARG(2)),
        IF_EQ(0, 0, 2),
        LOAD(ARG(2) + 4),
        IF_EQ(0, 1, 0),
        FAIL_WITH(0),
        RETURN(SECCOMP_RET_ALLOW),
        IF_EQ(__NR_setrlimit, 0, 4),
        LOAD(ARG(0)),
        IF_EQ(RLIMIT_CORE, 0, 1),
        FAIL_WITH(0),
        RETURN(SECCOMP_RET_ALLOW),
        IF_EQ(__NR_prctl, 0, 4), /* a core scheduling tag of its own would keep everybody else off its hyperthreads */
        LOAD(ARG(0)),
        IF_EQ(62 /* PR_SCHED_CORE */, 0, 1),
        FAIL_WITH(EPERM),
        RETURN(SECCOMP_RET_ALLOW),
        IF_EQ(__NR_fcntl, 0, 6), /* what holds up whoever opens a file, tells of its use, or uses up the user's pipes */
        LOAD(ARG(1)),
        IF_EQ(1024 /* F_SETLEASE */, 2, 0),
        IF_EQ(1026 /* F_NOTIFY */, 1, 0),
        IF_EQ(1031 /* F_SETPIPE_SZ */, 0, 1),
        FAIL_WITH(EPERM),
        RETURN(SECCOMP_RET_ALLOW),
        IF_EQ(__NR_renameat2, 0, 4), /* RENAME_WHITEOUT: see mknod */
        LOAD(ARG(4)),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 4, 0, 1),
        FAIL_WITH(EINVAL),
        RETURN(SECCOMP_RET_ALLOW),
        IF_EQ(__NR_mmap, 0, 4), /* the host's huge pages belong to somebody */
        LOAD(ARG(3)),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 0x40000 /* MAP_HUGETLB */, 0, 1),
        FAIL_WITH(ENOMEM),
        RETURN(SECCOMP_RET_ALLOW),
#ifdef __NR_mknod
        IF_EQ(__NR_mknod, 0, 2),
        LOAD(ARG(1)),
        BPF_JUMP(BPF_JMP | BPF_JA, 2, 0, 0),
#endif
        IF_EQ(__NR_mknodat, 0, 6), /* 0:0 may be made by anybody: overlayfs takes it for a deletion */
        LOAD(ARG(2)),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0170000),
        IF_EQ(0020000, 1, 0),
        IF_EQ(0060000, 0, 1),
        FAIL_WITH(EPERM),
        RETURN(SECCOMP_RET_ALLOW),
        IF_EQ(__NR_personality, 0, 5),
        LOAD(ARG(0)),
        IF_EQ(0, 2, 0),
        IF_EQ(0xffffffff, 1, 0),
        FAIL_WITH(EPERM),
        RETURN(SECCOMP_RET_ALLOW),
        IF_EQ(__NR_ioctl, 0, 5), /* typing into somebody's terminal */
        LOAD(ARG(1)),
        IF_EQ(0x5412, 1, 0),
        IF_EQ(0x541C, 0, 1),
        FAIL_WITH(EPERM),
        RETURN(SECCOMP_RET_ALLOW),
        IF_EQ(__NR_socketpair, 1, 0),
        IF_EQ(__NR_socket, 0, 16),
        LOAD(ARG(0)),
        IF_EQ(1, 13, 0), /* AF_UNIX */
        IF_EQ(2, 2, 0), /* AF_INET: loopback is all there is in this network namespace */
        IF_EQ(10, 1, 0), /* AF_INET6 */
        FAIL_WITH(EAFNOSUPPORT), /* netlink, packet, vsock and the rest */
        LOAD(ARG(1)),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xf),
        IF_EQ(1, 2, 0), /* SOCK_STREAM */
        IF_EQ(2, 1, 0), /* SOCK_DGRAM */
        FAIL_WITH(EPERM), /* raw */
        LOAD(ARG(2)), /* TCP and UDP: asking for another protocol can load its module on the host */
        IF_EQ(0, 3, 0),
        IF_EQ(6, 2, 0),
        IF_EQ(17, 1, 0),
        FAIL_WITH(EPROTONOSUPPORT),
        RETURN(SECCOMP_RET_ALLOW),
    };
    _Static_assert(sizeof head <= HEAD * sizeof *head, "HEAD");
    memcpy(filter, head, sizeof head);
    struct sock_filter *at = filter + sizeof head / sizeof *head;
    at = add_calls(at, refused_calls, CALLS, EPERM);
    at = add_calls(at, unsupported_calls, sizeof unsupported_calls / sizeof(int), EOPNOTSUPP);
    at = add_calls(at, ignored_calls, sizeof ignored_calls / sizeof(int), 0);
    if (hot.limits.idle)
        at = add_calls(at, ignored_when_idle, 1, 0);
    if (bound)
        at = add_calls(at, ignored_when_bound, 1, 0);
    *at++ = (struct sock_filter)RETURN(SECCOMP_RET_ALLOW);
    program.len = at - filter;
}

static int install_filter(void) {
    return syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
}
