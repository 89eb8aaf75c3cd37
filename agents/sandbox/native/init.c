/* PID 1 of a sandbox: starts commands, ends them with all that they started, and reaps.
 *
 * A command has a supervisor, a process of its own that is a subreaper: whatever the command leaves behind stays below it
 * and can be found at a timeout, whatever sessions and process groups it has made. It ends with its last descendant.
 */
#include "sandbox.h"

#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

enum { MAX_ARGS = 1024, MAX_PROCESSES = 4096 };

static void set_limit(int resource, rlim_t value) {
    struct rlimit now;
    getrlimit(resource, &now);
    if (value > now.rlim_max)
        value = now.rlim_max;
    now.rlim_cur = now.rlim_max = value;
    if (setrlimit(resource, &now) < 0)
        _exit(126);
}

static __attribute__((noreturn)) void give_up(const char *what, int code) {
    dprintf(2, "sandbox: %s: %s\n", what, strerror(errno));
    _exit(code);
}

static void drop_rights(void) {
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {0};
    if (hot.limits.own_id && (setgroups(0, NULL) < 0 || setresgid(COMMAND_ID, COMMAND_ID, COMMAND_ID) < 0 ||
                          setresuid(COMMAND_ID, COMMAND_ID, COMMAND_ID) < 0))
        give_up("setresuid", 126);
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    if (syscall(__NR_capset, &head, none) < 0)
        give_up("capset", 126);
    set_limit(RLIMIT_SIGPENDING, 256); /* the kernel counts them against the user who made the namespace too */
    set_limit(RLIMIT_AS, hot.limits.memory);
    set_limit(RLIMIT_FSIZE, hot.limits.file);
    set_limit(RLIMIT_NOFILE, hot.limits.open_files);
    set_limit(RLIMIT_NPROC, hot.limits.processes);
    set_limit(RLIMIT_MEMLOCK, 64 * 1024);
    set_limit(RLIMIT_MSGQUEUE, 0);
    set_limit(RLIMIT_RTPRIO, 0);
    set_limit(RLIMIT_NICE, 0);
}

/* In the process that becomes the command. `data` holds the work folder and the arguments. */
static __attribute__((noreturn)) void become(char *data, char *end, const int *descriptors, int count) {
    static char *arguments[MAX_ARGS + 1]; /* not on the stack, whose pages an idle PID 1 would keep */
    int n = 0, input = count == 3 ? descriptors[0] : open("/dev/null", O_RDONLY | O_CLOEXEC);
    sigset_t none;
    if (dup2(input, 0) < 0 || dup2(descriptors[count - 2], 1) < 0 || dup2(descriptors[count - 1], 2) < 0)
        _exit(126);
    syscall(__NR_close_range, 3, ~0U, 0);
    if (!hot.limits.idle)
        setsid();
    else if (setpgid(0, 0) < 0 || sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){0}) < 0)
        give_up("SCHED_IDLE", 126); /* a new session would be a new group of full weight; see autogroup in zygote.c */
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    const char *folder = data;
    for (data += strlen(data) + 1; data < end && n < MAX_ARGS; data += strlen(data) + 1)
        arguments[n++] = data;
    arguments[n] = NULL;
    errno = E2BIG;
    if (!n || data < end)
        give_up("arguments", 126);
    drop_rights();
    if (chdir(folder) < 0)
        give_up(folder, 126);
    environ = environment;
    execvp(arguments[0], arguments);
    give_up(arguments[0], errno == ENOENT ? 127 : 126);
}

/* fork() without the C library's bookkeeping, which would write to pages that an idle PID 1 need not own. */
static pid_t new_process(void) {
    return syscall(__NR_clone, SIGCHLD, 0, 0, 0, 0);
}

static void supervise(uint32_t id, char *data, char *end, const int *descriptors, int count) {
    int status;
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    /* It borrows our memory until it is another program; becoming one changes nothing in it that we read afterwards. */
    pid_t command = vfork();
    if (command == 0)
        become(data, end, descriptors, count);
    if (command < 0)
        dprintf(descriptors[count - 1], "sandbox: fork: %s\n", strerror(errno));
    for (int i = 0; i < count; i++)
        close(descriptors[i]); /* the host waits for the end of these pipes */
    if (command < 0)
        tell(SOCKET, EXITED, id, 126 << 8, 0, "", -1);
    for (pid_t pid; (pid = waitpid(-1, &status, 0)) > 0 || errno == EINTR;)
        if (pid == command)
            tell(SOCKET, EXITED, id, status, 0, "", -1);
    _exit(0);
}

static void start_command(uint32_t id, char *data, char *end, const int *descriptors, int count) {
    int slot = 0;
    while (slot < MAX_COMMANDS && hot.commands[slot].pid)
        slot++;
    errno = EAGAIN;
    pid_t pid = slot < MAX_COMMANDS && count >= 2 && !hot.sealed ? new_process() : -1;
    if (pid == 0)
        supervise(id, data, end, descriptors, count);
    if (pid > 0) {
        hot.commands[slot].pid = pid;
        hot.commands[slot].id = id;
        return;
    }
    if (count >= 2)
        dprintf(descriptors[count - 1], "sandbox: fork: %s\n", strerror(errno));
    tell(SOCKET, EXITED, id, 126 << 8, 0, "", -1);
}

/* Takes note of an ended child of PID 1. True when it was the supervisor of a command. */
static int note_end(pid_t pid, int status) {
    for (int i = 0; i < MAX_COMMANDS; i++)
        if (hot.commands[i].pid == pid) {
            hot.commands[i].pid = 0;
            if (status != 0) /* it never reported: killed with its command, or by it. The host ignores a second report. */
                tell(SOCKET, EXITED, hot.commands[i].id, SIGKILL, 0, "", -1);
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

/* SIGKILL to every process below `top`. */
static void kill_below(pid_t top) {
    static struct { pid_t pid, parent; int below; } seen[MAX_PROCESSES];
    int n = 0;
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
                seen[i].below = changed = 1;
                kill(seen[i].pid, SIGKILL);
            }
        }
    }
}

/* Ends a command and whatever it started. Its supervisor ends by itself when nothing is left below it. */
static void kill_command(uint32_t id) {
    pid_t top = 0;
    int running = 0, status;
    for (int i = 0; i < MAX_COMMANDS; i++) {
        running += hot.commands[i].pid != 0;
        if (hot.commands[i].pid && hot.commands[i].id == id)
            top = hot.commands[i].pid;
    }
    if (!top)
        return;
    for (int pass = 0; running > 1 && pass < 200; pass++) {
        kill_below(top);
        for (int wait = 0; wait < 5; wait++) {
            if (waitpid(top, &status, WNOHANG) == top) {
                note_end(top, status);
                return;
            }
            nanosleep(&(struct timespec){.tv_nsec = 200 * 1000}, NULL);
        }
    }
    /* It runs alone, so that everything in here is its own and one call ends even what forks all the time; or it forks
     * faster than 200 passes could end it. */
    kill_everything();
}

/* ---- requests ----------------------------------------------------------------------------------------------------- */

static void ignore(int number) {
    (void)number;
}

static int folder_of(const struct message *m) {
    if (m->op == SEAL)
        return STORE;
    if (m->op != FOLDER)
        return -1;
    return m->a ? VERIFY : open("/work", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static void answer(struct message *m, char *end) {
    if (m->op == EXEC) {
        start_command(m->id, m->data, end, hot.descriptors, hot.count);
        return;
    }
    if (m->op == KILL)
        kill_command(m->id);
    if (m->op == SEAL)
        hot.sealed = 1;
    if (m->op == KILL_ALL || m->op == SEAL)
        kill_everything();
    int folder = folder_of(m);
    tell(SOCKET, DONE, m->id, 0, 0, "", folder);
    if (folder > VERIFY)
        close(folder);
}

void serve(int can_fork) {
    sigset_t children, none;
    sigemptyset(&none);
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    /* Blocked but while waiting below, so that an end between two waits is not missed. */
    sigprocmask(SIG_BLOCK, &children, NULL);
    sigaction(SIGCHLD, &(struct sigaction){.sa_handler = ignore}, NULL);
    tell(SOCKET, READY, 0, can_fork, 0, "", -1);
    for (;;) {
        struct pollfd waiting = {SOCKET, POLLIN, 0};
        int ready = ppoll(&waiting, 1, NULL, &none);
        reap();
        if (ready <= 0)
            continue;
        ssize_t size = receive();
        if (!size)
            _exit(0); /* the host is gone; the kernel takes everything in this pid namespace with us */
        answer((struct message *)hot.buffer, hot.buffer + size);
        for (int i = 0; i < hot.count; i++)
            close(hot.descriptors[i]);
    }
}
