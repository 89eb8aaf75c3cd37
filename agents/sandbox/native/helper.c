/* Makes one sandbox and runs commands in it. Started by host.py, which speaks to it over the SOCK_SEQPACKET socket at
 * descriptor 3; see struct message for the protocol.
 *
 * Three roles, one small program:
 *   main        makes PID 1 in new namespaces, writes its id maps, and ends: an idle sandbox is one process.
 *   PID 1       builds the root file system from the host's specification, then serves the socket.
 *   supervisor  one for each command: a subreaper, so that whatever the command leaves behind stays below it and can be
 *               found at a timeout, whatever sessions and process groups it has made. Ends with its last descendant.
 *
 * Whatever fails while the sandbox is made is reported with the name of the step and errno; nothing is tried instead.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/mount.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* <sys/mount.h> and <linux/mount.h> clash in older C libraries, so take the four calls by hand. */
extern int mount(const char *, const char *, const char *, unsigned long, const void *);
extern int umount2(const char *, int);

#include "seccomp.h"

enum {
    SOCKET = 3,
    COMMAND_ID = 1000, /* user and group of commands, as they see it */
    MAX_MESSAGE = 192 * 1024,
    MAX_COMMANDS = 256,
    MAX_ARGS = 1024,
    MAX_ENVIRONMENT = 32,
    MAX_PROCESSES = 4096,
};
/* Where the new root is put together before it becomes the root: a folder that every host has and nobody binds from. */
static const char STAGING[] = "/sys";
/* Host ids for sandboxes on a host where we may choose: above everything that systemd, subuid and people hand out, plus
 * the process id of PID 1, so that no two live sandboxes share the kernel's per-user quotas. */
static const uint32_t FIRST_HOST_ID = 0x70000000;

/* Host to sandbox: SPEC (what to build), EXEC (id; data = cwd and arguments, each ended by NUL; descriptors = [stdin,]
 * stdout, stderr), KILL (id), KILL_ALL, FOLDER (a = 0 /work, 1 /verify).
 * Sandbox to host: BORN (a = pid on the host, b = host id of commands, id = 1 when commands have an id of their own),
 * READY, FAILED (a = errno, data = step), EXITED (id, a = wait status), DONE (id: the request is carried out; for FOLDER
 * with the descriptor). */
enum op { SPEC = 1, EXEC, KILL, KILL_ALL, FOLDER, BORN, READY, FAILED, EXITED, DONE };

struct message {
    uint32_t op, id;
    int32_t a, b;
    char data[];
};

static struct {
    rlim_t memory, file, processes, open_files;
    char *environment[MAX_ENVIRONMENT];
    int own_id; /* commands have an id other than PID 1's */
} limits;
static struct { pid_t pid; uint32_t id; } commands[MAX_COMMANDS];
static int verify_folder = -1;
static char buffer[MAX_MESSAGE + 1] __attribute__((aligned(8)));

static void tell(enum op op, uint32_t id, int32_t a, int32_t b, const char *text, int descriptor) {
    struct message head = {.op = op, .id = id, .a = a, .b = b};
    struct iovec parts[2] = {{&head, sizeof head}, {(void *)text, strlen(text)}};
    union { struct cmsghdr align; char space[CMSG_SPACE(sizeof(int))]; } control = {0};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    if (descriptor >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &descriptor, sizeof(int));
    }
    while (sendmsg(SOCKET, &message, MSG_NOSIGNAL) < 0)
        if (errno != EINTR)
            _exit(1); /* the host is gone; without it there is nobody to serve */
}

static void fail(const char *step) {
    tell(FAILED, 0, errno, 0, step, -1);
    _exit(1);
}

#define MUST(step, call) \
    do { \
        if ((call) < 0) \
            fail(step); \
    } while (0)

/* ---- building the root file system ------------------------------------------------------------------------------- */

static char *cursor, *cursor_end;

static char *next_field(void) {
    char *field = cursor;
    if (cursor >= cursor_end) {
        errno = EINVAL;
        fail("specification");
    }
    cursor += strlen(cursor) + 1;
    return field;
}

static int set_mount(const char *path, uint64_t attributes, unsigned flags) {
    struct mount_attr attr = {.attr_set = attributes};
    return syscall(__NR_mount_setattr, AT_FDCWD, path, flags, &attr, sizeof attr);
}

/* A read-only view of a host path, with everything mounted below it. */
static void bind_host(const char *source, const char *target, uint64_t attributes) {
    struct stat st;
    int tree = syscall(__NR_open_tree, AT_FDCWD, source, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
    if (tree < 0 || fstat(tree, &st) < 0)
        fail(source);
    if (S_ISDIR(st.st_mode)) {
        if (mkdir(target, 0755) < 0 && errno != EEXIST)
            fail(target);
    } else {
        int file = open(target, O_CREAT | O_CLOEXEC | O_WRONLY, 0644);
        MUST(target, file);
        close(file);
    }
    struct mount_attr attr = {.attr_set = attributes};
    MUST("mount_setattr", syscall(__NR_mount_setattr, tree, "", AT_EMPTY_PATH | AT_RECURSIVE, &attr, sizeof attr));
    MUST("move_mount", syscall(__NR_move_mount, tree, "", AT_FDCWD, target, MOVE_MOUNT_F_EMPTY_PATH));
    close(tree);
}

static void write_file(const char *path, const char *text) {
    int file = open(path, O_CREAT | O_EXCL | O_CLOEXEC | O_WRONLY, 0644);
    MUST(path, file);
    MUST(path, write(file, text, strlen(text)));
    close(file);
}

/* The specification is a list of steps, each a word and its fields; every target is relative to the new root. */
static void build_step(const char *step) {
    if (!strcmp(step, "dir")) {
        const char *path = next_field();
        MUST(path, mkdir(path, strtol(next_field(), NULL, 8)));
    } else if (!strcmp(step, "bind")) {
        const char *source = next_field();
        bind_host(source, next_field(), MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
    } else if (!strcmp(step, "device")) {
        const char *source = next_field();
        bind_host(source, next_field(), MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
    } else if (!strcmp(step, "link")) {
        const char *target = next_field(), *path = next_field();
        MUST(path, symlink(target, path));
    } else if (!strcmp(step, "file")) {
        const char *path = next_field();
        write_file(path, next_field());
    } else if (!strcmp(step, "tmpfs")) {
        const char *path = next_field();
        MUST(path, mount("tmpfs", path, "tmpfs", 2 | 4 /* nosuid, nodev */, next_field()));
    } else if (!strcmp(step, "verify")) {
        /* Two mounts of one tmpfs: the commands' is read-only, the other lives only in this descriptor and is what the
         * host writes through. An agent cannot plant files in it even where it has PID 1's id. */
        const char *path = next_field();
        MUST(path, mount("tmpfs", path, "tmpfs", 2 | 4, next_field()));
        MUST(path, verify_folder = syscall(__NR_open_tree, AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
        MUST(path, set_mount(path, MOUNT_ATTR_RDONLY, 0));
    } else if (!strcmp(step, "proc")) {
        const char *path = next_field();
        MUST("mount proc", mount("proc", path, "proc", 2 | 4 | 8 /* nosuid, nodev, noexec */, "hidepid=2"));
        MUST("mount proc", set_mount(path, MOUNT_ATTR_RDONLY, 0));
    } else if (!strcmp(step, "hostname")) {
        const char *name = next_field();
        MUST("sethostname", sethostname(name, strlen(name)));
    } else if (!strcmp(step, "env")) {
        int i = 0;
        while (limits.environment[i])
            i++;
        errno = E2BIG;
        MUST("environment", i + 1 < MAX_ENVIRONMENT ? 0 : -1);
        limits.environment[i] = strdup(next_field()); /* the message buffer is used again */
    } else if (!strcmp(step, "limits")) {
        limits.memory = strtoull(next_field(), NULL, 10);
        limits.file = strtoull(next_field(), NULL, 10);
        limits.processes = strtoull(next_field(), NULL, 10);
        limits.open_files = strtoull(next_field(), NULL, 10);
    } else {
        errno = EINVAL;
        fail(step);
    }
}

static void raise_loopback(void) {
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    MUST("loopback", s);
    MUST("loopback", ioctl(s, SIOCSIFFLAGS, &request));
    close(s);
}

static void build_root(void) {
    MUST("make mounts private", mount(NULL, "/", NULL, (1 << 14) | (1 << 18) /* rec, private */, NULL));
    MUST("mount root tmpfs", mount("tmpfs", STAGING, "tmpfs", 2 | 4, "mode=0755,size=1m,nr_inodes=512"));
    MUST("chdir", chdir(STAGING));
    umask(0);
    while (cursor < cursor_end)
        build_step(next_field());
    umask(022);
    raise_loopback();
    /* The new root on top of the old one at the same place, then the old one away: nothing of it can be reached. */
    MUST("pivot_root", syscall(__NR_pivot_root, ".", "."));
    MUST("umount old root", umount2(".", 2 /* MNT_DETACH */));
    MUST("chdir", chdir("/"));
    MUST("read-only root", set_mount("/", MOUNT_ATTR_RDONLY, 0));
    for (int capability = 0; prctl(PR_CAPBSET_READ, capability) >= 0; capability++)
        MUST("bounding set", prctl(PR_CAPBSET_DROP, capability));
    MUST("no_new_privs", prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    /* Nobody in here may look into PID 1 or its supervisors, even with the same id. */
    MUST("undumpable", prctl(PR_SET_DUMPABLE, 0));
    /* Nothing that PID 1 still has to do is refused, and what it starts inherits the filter: compiled once, not for each
     * command. */
    MUST("seccomp", install_filter());
}

/* ---- running commands --------------------------------------------------------------------------------------------- */

static void set_limit(int resource, rlim_t value) {
    struct rlimit now;
    getrlimit(resource, &now);
    if (value > now.rlim_max)
        value = now.rlim_max;
    now.rlim_cur = now.rlim_max = value;
    if (setrlimit(resource, &now) < 0)
        _exit(126);
}

static void give_up(const char *what, int code) {
    dprintf(2, "sandbox: %s: %s\n", what, strerror(errno));
    _exit(code);
}

static void drop_everything(void) {
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {0};
    if (limits.own_id && (setgroups(0, NULL) < 0 || setresgid(COMMAND_ID, COMMAND_ID, COMMAND_ID) < 0 ||
                          setresuid(COMMAND_ID, COMMAND_ID, COMMAND_ID) < 0))
        give_up("setresuid", 126);
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    if (syscall(__NR_capset, &head, none) < 0)
        give_up("capset", 126);
    set_limit(RLIMIT_CORE, 0);
    set_limit(RLIMIT_AS, limits.memory);
    set_limit(RLIMIT_FSIZE, limits.file);
    set_limit(RLIMIT_NOFILE, limits.open_files);
    set_limit(RLIMIT_NPROC, limits.processes);
    set_limit(RLIMIT_MEMLOCK, 64 * 1024);
    set_limit(RLIMIT_MSGQUEUE, 0);
    set_limit(RLIMIT_RTPRIO, 0);
    set_limit(RLIMIT_NICE, 0);
}

/* In the process that becomes the command. `data` holds the work folder and the arguments. */
static void become(char *data, char *end, const int *descriptors, int count) {
    char *arguments[MAX_ARGS + 1];
    int n = 0, input = count == 3 ? descriptors[0] : open("/dev/null", O_RDONLY | O_CLOEXEC);
    sigset_t none;
    if (dup2(input, 0) < 0 || dup2(descriptors[count - 2], 1) < 0 || dup2(descriptors[count - 1], 2) < 0)
        _exit(126);
    syscall(__NR_close_range, 3, ~0U, 0);
    setsid();
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    const char *folder = data;
    for (data += strlen(data) + 1; data < end && n < MAX_ARGS; data += strlen(data) + 1)
        arguments[n++] = data;
    arguments[n] = NULL;
    errno = E2BIG;
    if (!n || data < end)
        give_up("arguments", 126);
    drop_everything();
    if (chdir(folder) < 0)
        give_up(folder, 126);
    environ = limits.environment;
    execvp(arguments[0], arguments);
    give_up(arguments[0], errno == ENOENT ? 127 : 126);
}

static void supervise(uint32_t id, char *data, char *end, const int *descriptors, int count) {
    int status;
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    pid_t command = fork();
    if (command == 0)
        become(data, end, descriptors, count);
    if (command < 0)
        dprintf(descriptors[count - 1], "sandbox: fork: %s\n", strerror(errno));
    for (int i = 0; i < count; i++)
        close(descriptors[i]); /* the host waits for the end of these pipes */
    if (command < 0)
        tell(EXITED, id, 126 << 8, 0, "", -1);
    for (pid_t pid; (pid = waitpid(-1, &status, 0)) > 0 || errno == EINTR;)
        if (pid == command)
            tell(EXITED, id, status, 0, "", -1);
    _exit(0);
}

static void start_command(uint32_t id, char *data, char *end, const int *descriptors, int count) {
    int slot = 0;
    while (slot < MAX_COMMANDS && commands[slot].pid)
        slot++;
    errno = EAGAIN;
    pid_t pid = slot < MAX_COMMANDS && count >= 2 ? fork() : -1;
    if (pid == 0)
        supervise(id, data, end, descriptors, count);
    if (pid > 0) {
        commands[slot].pid = pid;
        commands[slot].id = id;
        return;
    }
    if (count >= 2)
        dprintf(descriptors[count - 1], "sandbox: fork: %s\n", strerror(errno));
    tell(EXITED, id, 126 << 8, 0, "", -1);
}

/* Takes note of an ended child of PID 1. True when it was the supervisor of a command. */
static int note_end(pid_t pid, int status) {
    for (int i = 0; i < MAX_COMMANDS; i++)
        if (commands[i].pid == pid) {
            commands[i].pid = 0;
            if (status != 0) /* it never reported: killed with its command, or by it. The host ignores a second report. */
                tell(EXITED, commands[i].id, SIGKILL, 0, "", -1);
            return 1;
        }
    return 0;
}

static void kill_everything(void) {
    int status;
    kill(-1, SIGKILL); /* atomic in this pid namespace, and never hits PID 1 itself */
    for (pid_t pid; (pid = waitpid(-1, &status, 0)) > 0 || errno == EINTR;)
        if (pid > 0)
            note_end(pid, status);
}

static void reap(void) {
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
        if (note_end(pid, status) && status != 0)
            kill_everything(); /* a supervisor was killed from inside: what it held can no longer be told apart */
}

/* SIGKILL to every process below `top`. True while there was one. */
static int kill_below(pid_t top) {
    static struct { pid_t pid, parent; int below; } seen[MAX_PROCESSES];
    int n = 0, found = 0;
    DIR *proc = opendir("/proc");
    for (struct dirent *entry; proc && (entry = readdir(proc)) && n < MAX_PROCESSES;) {
        char path[64], text[512], *tail;
        int parent;
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9')
            continue;
        snprintf(path, sizeof path, "/proc/%.20s/stat", entry->d_name);
        int file = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t size = file < 0 ? 0 : read(file, text, sizeof text - 1);
        if (file >= 0)
            close(file);
        if (size <= 0)
            continue;
        text[size] = 0;
        tail = strrchr(text, ')'); /* the name before it may hold anything */
        if (tail && sscanf(tail + 1, " %*c %d", &parent) == 1) {
            seen[n].pid = atoi(entry->d_name);
            seen[n].parent = parent;
            seen[n++].below = 0;
        }
    }
    if (proc)
        closedir(proc);
    for (int changed = 1; changed;) {
        changed = 0;
        for (int i = 0; i < n; i++) {
            int below = seen[i].parent == top;
            for (int j = 0; j < n && !below; j++)
                below = seen[j].below && seen[j].pid == seen[i].parent;
            if (below && !seen[i].below) {
                seen[i].below = changed = found = 1;
                kill(seen[i].pid, SIGKILL);
            }
        }
    }
    return found;
}

/* Ends a command and whatever it started. Its supervisor ends by itself when nothing is left below it. */
static void kill_command(uint32_t id) {
    for (int i = 0; i < MAX_COMMANDS; i++) {
        pid_t top = commands[i].pid;
        if (!top || commands[i].id != id)
            continue;
        for (int pass = 0; pass < 200; pass++) {
            int status;
            kill_below(top);
            for (int wait = 0; wait < 5; wait++) {
                pid_t ended = waitpid(top, &status, WNOHANG);
                if (ended == top) {
                    note_end(top, status);
                    return;
                }
                nanosleep(&(struct timespec){.tv_nsec = 200 * 1000}, NULL);
            }
        }
        kill_everything(); /* it forks faster than a second of passes could end it */
        return;
    }
}

/* ---- PID 1 -------------------------------------------------------------------------------------------------------- */

/* The next message into `buffer`; returns its size, 0 at the end, and the descriptors that came with it. */
static ssize_t receive(int *descriptors, int *count) {
    union { struct cmsghdr align; char space[CMSG_SPACE(3 * sizeof(int))]; } control;
    struct iovec part = {buffer, MAX_MESSAGE};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t size;
    while ((size = recvmsg(SOCKET, &message, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR)
        ;
    *count = 0;
    struct cmsghdr *c = size > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (c && c->cmsg_type == SCM_RIGHTS) {
        *count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(descriptors, CMSG_DATA(c), *count * sizeof(int));
    }
    if (size >= (ssize_t)sizeof(struct message))
        buffer[size] = 0;
    return size < (ssize_t)sizeof(struct message) ? 0 : size;
}

static void serve(void) {
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    int children = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    MUST("signalfd", children);
    tell(READY, 0, 0, 0, "", -1);
    for (;;) {
        struct pollfd waiting[2] = {{SOCKET, POLLIN, 0}, {children, POLLIN, 0}};
        struct signalfd_siginfo info;
        int descriptors[3], count;
        if (poll(waiting, 2, -1) < 0)
            continue;
        if (waiting[1].revents) {
            while (read(children, &info, sizeof info) > 0)
                ;
            reap();
        }
        if (!waiting[0].revents)
            continue;
        ssize_t size = receive(descriptors, &count);
        if (!size)
            _exit(0); /* the host is gone; the kernel takes everything in this pid namespace with us */
        struct message *m = (struct message *)buffer;
        int folder = -1;
        if (m->op == EXEC)
            start_command(m->id, m->data, buffer + size, descriptors, count);
        else if (m->op == KILL)
            kill_command(m->id);
        else if (m->op == KILL_ALL)
            kill_everything();
        else if (m->op == FOLDER)
            folder = m->a ? verify_folder : open("/work", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (m->op != EXEC)
            tell(DONE, m->id, 0, 0, "", folder);
        if (folder >= 0 && folder != verify_folder)
            close(folder);
        for (int i = 0; i < count; i++)
            close(descriptors[i]);
    }
}

static void init(int go) {
    char byte;
    /* SIGKILL when the host's thread that started us ends. The socket's end says the same, unless a forked copy of the
     * host still holds the other end. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (read(go, &byte, 1) != 1)
        _exit(1);
    close(go);
    build_root();
    serve();
}

/* ---- making PID 1 ------------------------------------------------------------------------------------------------- */

static int write_text(pid_t pid, const char *name, const char *text) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0)
        return -1;
    int wrote = write(file, text, strlen(text)), error = errno;
    close(file);
    errno = error;
    return wrote;
}

/* PID 1 keeps our id as 0 and commands get an id nobody has; where we may map only our own, both are it. */
static void map_ids(pid_t pid, uint32_t host_id) {
    char text[96];
    MUST("setgroups", limits.own_id ? 0 : write_text(pid, "setgroups", "deny"));
    for (int group = 0; group < 2; group++) {
        uint32_t own = group ? getegid() : geteuid();
        if (limits.own_id)
            snprintf(text, sizeof text, "0 %u 1\n%d %u 1\n", own, COMMAND_ID, host_id);
        else
            snprintf(text, sizeof text, "%d %u 1\n", COMMAND_ID, own);
        MUST(group ? "gid_map" : "uid_map", write_text(pid, group ? "gid_map" : "uid_map", text));
    }
}

/* May this process map ids other than its own? CAP_SETUID and CAP_SETGID, over a namespace that has the ids. */
static int may_choose_ids(void) {
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct have[2];
    unsigned first, outside, count;
    FILE *map = fopen("/proc/self/uid_map", "re");
    int whole = map && fscanf(map, "%u %u %u", &first, &outside, &count) == 3 && first == 0 && count > FIRST_HOST_ID;
    if (map)
        fclose(map);
    return whole && syscall(__NR_capget, &head, have) == 0 && (have[0].effective >> CAP_SETUID & 1) &&
           (have[0].effective >> CAP_SETGID & 1);
}

int main(void) {
    int descriptors[3], count, go[2], null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3; fd++)
        dup2(null, fd); /* a terminal or a pipe of the host must not outlive it in here */
    syscall(__NR_close_range, SOCKET + 1, ~0U, 0);
    fcntl(SOCKET, F_SETFD, FD_CLOEXEC);
    setsid(); /* Ctrl-C is for the host */
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL); /* Python ignores SIGPIPE, and commands would inherit that */
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);

    ssize_t size = receive(descriptors, &count);
    struct message *m = (struct message *)buffer;
    if (!size || m->op != SPEC)
        return 1;
    cursor = m->data;
    cursor_end = buffer + size;
    /* Joining before PID 1 exists leaves no moment in which it runs without the limit. */
    for (int groups = m->a; groups > 0; groups--) {
        int file = open(next_field(), O_WRONLY | O_CLOEXEC);
        MUST("cgroup", file);
        MUST("cgroup", write(file, "0", 1));
        close(file);
    }
    limits.own_id = may_choose_ids();
    MUST("pipe", pipe2(go, O_CLOEXEC));
    /* CLONE_PARENT: PID 1 becomes the host's child, so that the host can wait for it and this process can end. */
    pid_t pid = syscall(__NR_clone,
                        CLONE_PARENT | CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC |
                            CLONE_NEWUTS | CLONE_NEWCGROUP | SIGCHLD,
                        0, 0, 0, 0);
    MUST("clone with new namespaces", pid);
    if (pid == 0) {
        close(go[1]);
        init(go[0]);
    }
    uint32_t host_id = limits.own_id ? FIRST_HOST_ID + pid : geteuid();
    tell(BORN, limits.own_id, pid, host_id, "", -1);
    map_ids(pid, host_id);
    return write(go[1], "", 1) == 1 ? 0 : 1;
}
