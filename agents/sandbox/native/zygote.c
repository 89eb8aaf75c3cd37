/* The zygote: makes sandboxes by cloning itself. One for each NUMA node and priority, started by zygote.py.
 *
 *   zygote.c   this file: starts, then makes a PID 1 in new namespaces for each CREATE
 *   root.c     the file systems, shared and own
 *   init.c     PID 1 of a sandbox: commands and their ends
 *   seccomp.h  the system calls that a sandbox is refused
 *   wire.c     messages; the protocol is in sandbox.h
 *
 * Whatever fails is reported with the name of the step and errno; nothing is tried instead but where a comment says so.
 */
#include "sandbox.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>

#include "seccomp.h"

enum { PROC = 1, NAMESPACES = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWUTS };
/* Host ids for sandboxes on a host where we may choose: above everything that systemd, subuid and people hand out, plus
 * the process id of PID 1, so that no two live sandboxes share the kernel's per-user quotas. Forks keep their parent's,
 * who owns the files below them. */
static const uint32_t FIRST_HOST_ID = 0x70000000;

/* ---- PID 1, until it serves --------------------------------------------------------------------------------------- */

static void raise_loopback(void) {
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    MUST("loopback", s);
    MUST("loopback", ioctl(s, SIOCSIFFLAGS, &request));
    close(s);
}

static void give_up_rights(void) {
    for (int capability = 0; prctl(PR_CAPBSET_READ, capability) >= 0; capability++)
        MUST("bounding set", prctl(PR_CAPBSET_DROP, capability));
    /* Where cores are piped to a program of the host, the kernel ignores a limit of 0; 1 is its word for never. */
    MUST("RLIMIT_CORE", setrlimit(RLIMIT_CORE, &(struct rlimit){1, 1}));
    MUST("no_new_privs", prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    /* Nobody in here may look into PID 1 or its supervisors, even with the same id. */
    MUST("undumpable", prctl(PR_SET_DUMPABLE, 0));
    /* Nothing that PID 1 still has to do is refused, and what it starts inherits the filter: compiled once, not for each
     * command. */
    MUST("seccomp", install_filter());
}

/* `descriptors` = socket, cgroups, layers. The zygote writes our id maps, then a byte to `go`. */
static void become_init(int go, const int *descriptors, int groups, int layers) {
    char byte;
    /* SIGKILL when the host's thread that started the zygote ends. The socket's end says the same, unless a forked copy of
     * the host still holds the other end. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_DFL);
    if (dup3(descriptors[0], SOCKET, O_CLOEXEC) < 0)
        _exit(1);
    close(descriptors[0]);
    for (int i = 1; i <= groups; i++) {
        MUST("cgroup", write(descriptors[i], "0", 1));
        close(descriptors[i]);
    }
    if (read(go, &byte, 1) != 1)
        _exit(1);
    close(go);
    MUST("new cgroup namespace", unshare(CLONE_NEWCGROUP)); /* after joining, so that its group is the root it sees */
    int can_fork = build_files(descriptors + 1 + groups, layers);
    MUST("sethostname", sethostname("sandbox", 7));
    raise_loopback();
    give_up_rights();
    serve(can_fork);
}

/* ---- the zygote --------------------------------------------------------------------------------------------------- */

static int write_text(pid_t pid, const char *name, const char *text) {
    char path[64];
    if (pid)
        snprintf(path, sizeof path, "%d/%s", pid, name);
    else
        snprintf(path, sizeof path, "self/%s", name);
    int file = openat(PROC, path, O_WRONLY | O_CLOEXEC);
    if (file < 0)
        return -1;
    int wrote = write(file, text, strlen(text)), error = errno;
    close(file);
    errno = error;
    return wrote;
}

/* PID 1 keeps our id as 0 and commands get an id nobody has; where we may map only our own, both are it. Returns the name
 * of the step that failed, or NULL. */
static const char *map_ids(pid_t pid, uint32_t host_id) {
    char text[96];
    if (!hot.limits.own_id && write_text(pid, "setgroups", "deny") < 0)
        return "setgroups";
    for (int group = 0; group < 2; group++) {
        uint32_t own = group ? getegid() : geteuid();
        if (hot.limits.own_id)
            snprintf(text, sizeof text, "0 %u 1\n%d %u 1\n", own, COMMAND_ID, host_id);
        else
            snprintf(text, sizeof text, "%d %u 1\n", COMMAND_ID, own);
        if (write_text(pid, group ? "gid_map" : "uid_map", text) < 0)
            return group ? "gid_map" : "uid_map";
    }
    return NULL;
}

/* May this process map ids other than its own, and mount? By capabilities, over a namespace that has the ids. */
static int may_choose_ids(void) {
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct have[2];
    unsigned first, outside, count;
    FILE *map = fopen("/proc/self/uid_map", "re");
    int whole = map && fscanf(map, "%u %u %u", &first, &outside, &count) == 3 && first == 0 && count > FIRST_HOST_ID;
    if (map)
        fclose(map);
    return whole && syscall(__NR_capget, &head, have) == 0 && (have[0].effective >> CAP_SETUID & 1) &&
           (have[0].effective >> CAP_SETGID & 1) && (have[0].effective >> CAP_SYS_ADMIN & 1);
}

/* Without rights of our own we have them in a user namespace, where our id is root. */
static void become_root(void) {
    char text[32];
    unsigned user = geteuid(), group = getegid();
    MUST("new user namespace", unshare(CLONE_NEWUSER));
    MUST("setgroups", write_text(0, "setgroups", "deny"));
    snprintf(text, sizeof text, "0 %u 1", user);
    MUST("uid_map", write_text(0, "uid_map", text));
    snprintf(text, sizeof text, "0 %u 1", group);
    MUST("gid_map", write_text(0, "gid_map", text));
}

/* The processors, and the memory, of one NUMA node: "1" and "4,5,6,7". False, and nothing done, where the list is empty. */
static int bind_to_node(unsigned node, char *list) {
    cpu_set_t cpus;
    unsigned long nodes[16] = {0}; /* of 1,024 nodes, what the kernel is built for at most */
    CPU_ZERO(&cpus);
    if (!*list)
        return 0;
    for (char *part = strtok(list, ","); part; part = strtok(NULL, ","))
        CPU_SET(atoi(part), &cpus);
    MUST("processors of the NUMA node", sched_setaffinity(0, sizeof cpus, &cpus));
    errno = EINVAL;
    MUST("NUMA node", node < sizeof nodes * 8 ? 0 : -1);
    nodes[node / (8 * sizeof *nodes)] |= 1UL << node % (8 * sizeof *nodes);
    /* Preferred, not bound: a full node takes from its neighbour and does not kill. */
    MUST("memory of the NUMA node", syscall(__NR_set_mempolicy, 1 /* MPOL_PREFERRED */, nodes, sizeof nodes * 8));
    return 1;
}

/* Where sessions are scheduled as groups (and no cgroup says otherwise) an idle one must be told so as a whole. */
static void make_session_idle(void) {
    for (int tries = 0; write_text(0, "autogroup", "19") < 0 && errno != ENOENT; tries++) {
        if (errno != EAGAIN || tries == 100) /* the kernel takes ten of these a second from all who are not root */
            fail("autogroup");
        nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
    }
}

static void read_limits(void) {
    hot.limits.memory = strtoull(next_field(), NULL, 10);
    hot.limits.file = strtoull(next_field(), NULL, 10);
    hot.limits.processes = strtoull(next_field(), NULL, 10);
    hot.limits.open_files = strtoull(next_field(), NULL, 10);
    hot.limits.store = next_field();
    hot.limits.inodes = next_field();
    hot.limits.verify = next_field();
}

/* Makes one sandbox. What fails here is reported on its own socket: the zygote lives on. */
static void create(const struct message *m, const int *descriptors, int count) {
    int go[2] = {-1, -1}, sandbox = descriptors[0];
    pid_t pid = -1;
    errno = EINVAL;
    if (count == 1 + m->a + m->b && pipe2(go, O_CLOEXEC) == 0) {
        /* CLONE_PARENT: PID 1 becomes the host's child, who can wait for it and kill it without fear of a reused number. */
        pid = syscall(__NR_clone, CLONE_PARENT | NAMESPACES | SIGCHLD, 0, 0, 0, 0);
        if (pid == 0) {
            close(go[1]);
            become_init(go[0], descriptors, m->a, m->b);
        }
    }
    int error = errno;
    close(go[0]);
    if (pid < 0) {
        tell(sandbox, FAILED, 0, error, 0, "clone with new namespaces", -1);
        close(go[1]);
        return;
    }
    uint32_t host_id = !hot.limits.own_id ? geteuid() : m->id ? m->id : FIRST_HOST_ID + pid;
    tell(sandbox, BORN, hot.limits.own_id, pid, host_id, "", -1);
    const char *failed = map_ids(pid, host_id);
    if (failed)
        tell(sandbox, FAILED, 0, errno, 0, failed, -1);
    else if (write(go[1], "", 1) != 1)
        tell(sandbox, FAILED, 0, errno, 0, "start PID 1", -1);
    close(go[1]); /* a PID 1 that read nothing ends */
}

int main(void) {
    /* The host gave us the socket as 0 and nothing else. */
    syscall(__NR_close_range, SOCKET + 1, ~0U, 0);
    fcntl(SOCKET, F_SETFD, FD_CLOEXEC);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setsid(); /* Ctrl-C is for the host */
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL); /* Python ignores SIGPIPE, and commands would inherit that */
    signal(SIGPIPE, SIG_IGN); /* a PID 1 may be killed while we write to it; it takes this back */
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);

    ssize_t size = receive();
    const struct message *m = (struct message *)hot.buffer;
    if (!size || m->op != ROOT)
        return 1;
    start_fields(hot.buffer + sizeof *m, hot.buffer + size);
    /* /proc is opened while it is in sight: after pivot_root the way to a new PID 1's id maps is this descriptor. */
    MUST("/proc", open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC) == PROC ? 0 : -1);
    MUST("/proc", dup3(PROC, VERIFY, O_CLOEXEC)); /* keeps the number free: PID 1 puts its own over both */
    /* When the machine runs out of memory, sandboxes go before their host. */
    MUST("oom_score_adj", write_text(0, "oom_score_adj", "500"));
    unsigned node = atoi(next_field());
    int bound = bind_to_node(node, next_field());
    hot.limits.idle = atoi(next_field());
    if (hot.limits.idle)
        make_session_idle();
    /* One tag for all sandboxes of this priority: the kernel then keeps others off their sibling hyperthreads. */
    int tagged = hot.limits.idle && prctl(PR_SCHED_CORE, 1 /* create */, 0, 1 /* this process */, 0) == 0;
    hot.limits.own_id = may_choose_ids();
    if (!hot.limits.own_id)
        become_root();
    /* One IPC namespace for all, in which the filter lets nobody make or reach anything. One each would keep a file system
     * each, and the kernel's books for a memory cgroup grow with the number of file systems. */
    MUST("new IPC namespace", unshare(CLONE_NEWIPC));
    prepare_filter(bound);
    build_root();
    tell(SOCKET, READY, 0, tagged, 0, "", -1);
    while ((size = receive())) {
        if (m->op == CREATE && hot.count > 0) {
            start_fields(hot.buffer + sizeof *m, hot.buffer + size);
            read_limits();
            create(m, hot.descriptors, hot.count);
        }
        for (int i = 0; i < hot.count; i++)
            close(hot.descriptors[i]);
    }
    return 0;
}
