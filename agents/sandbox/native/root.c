/* The file systems of a sandbox.
 *
 * The zygote builds one read-only root from the factory's steps and pivots into it, so that a sandbox copies a handful of
 * mounts and not the host's. PID 1 then mounts what is its own: one tmpfs behind /work, /tmp and /dev/shm, /verify, /proc.
 *
 * A fork puts an overlay over the tmpfs of a sealed sandbox: its lower layers are those of the sealed one, what it
 * writes goes to a tmpfs of its own. Layers are descriptors of detached mounts; nothing has a name that could collide.
 */
#include "sandbox.h"

#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

/* <sys/mount.h> and <linux/mount.h> clash in older C libraries, so take the two calls by hand. */
extern int mount(const char *, const char *, const char *, unsigned long, const void *);
extern int umount2(const char *, int);
enum { RDONLY = 1, NOSUID = 2, NODEV = 4, NOEXEC = 8, DETACH = 2, REC_PRIVATE = (1 << 14) | (1 << 18) };

/* Where the new root is put together before it becomes the root: a folder that every host has and nobody binds from. */
static const char STAGING[] = "/sys";

/* ---- the new mount calls ------------------------------------------------------------------------------------------ */

static int open_tree(int folder, const char *path, unsigned flags) {
    return syscall(__NR_open_tree, folder, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | flags);
}

static int attach(int tree, const char *target) {
    return syscall(__NR_move_mount, tree, "", AT_FDCWD, target, MOVE_MOUNT_F_EMPTY_PATH);
}

static int set_attributes(int folder, const char *path, uint64_t attributes, unsigned flags) {
    struct mount_attr attr = {.attr_set = attributes};
    return syscall(__NR_mount_setattr, folder, path, flags | AT_EMPTY_PATH, &attr, sizeof attr);
}

static int configure(int context, unsigned command, const char *key, const void *value, int descriptor) {
    return syscall(__NR_fsconfig, context, command, key, value, descriptor);
}

static int finish(int context) {
    if (configure(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        return -1;
    int made = syscall(__NR_fsmount, context, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
    close(context);
    return made;
}

/* ---- the root that all sandboxes of a zygote share ---------------------------------------------------------------- */

/* A view of a host path, with everything mounted below it. */
static void bind_host(const char *source, const char *target, uint64_t attributes) {
    struct stat st;
    int tree = open_tree(AT_FDCWD, source, AT_RECURSIVE);
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
    MUST("mount_setattr", set_attributes(tree, "", attributes, AT_RECURSIVE));
    MUST("move_mount", attach(tree, target));
    close(tree);
}

static void write_file(const char *path, const char *text) {
    int file = open(path, O_CREAT | O_EXCL | O_CLOEXEC | O_WRONLY, 0644);
    MUST(path, file);
    MUST(path, write(file, text, strlen(text)));
    close(file);
}

/* A node of our own where the kernel lets us make one that works: no mount to copy for each sandbox. */
static void make_device(const char *source, const char *path) {
    struct stat st;
    MUST(source, stat(source, &st));
    if (mknod(path, S_IFCHR | 0666, st.st_rdev) < 0) {
        if (errno != EPERM)
            fail(path);
        bind_host(source, path, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
    }
}

/* Every target is relative to the new root. */
static void build_step(const char *step) {
    if (!strcmp(step, "dir")) {
        const char *path = next_field();
        MUST(path, mkdir(path, strtol(next_field(), NULL, 8)));
    } else if (!strcmp(step, "bind")) {
        const char *source = next_field();
        bind_host(source, next_field(), MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
    } else if (!strcmp(step, "proc")) {
        /* Never seen: every sandbox mounts its own over it. The kernel allows that only where one is in sight already. */
        bind_host("/proc", next_field(), MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
    } else if (!strcmp(step, "device")) {
        const char *source = next_field();
        make_device(source, next_field());
    } else if (!strcmp(step, "link")) {
        const char *target = next_field(), *path = next_field();
        MUST(path, symlink(target, path));
    } else if (!strcmp(step, "file")) {
        const char *path = next_field();
        write_file(path, next_field());
    } else if (!strcmp(step, "tmpfs")) {
        const char *path = next_field();
        /* Read-only: all sandboxes see this one, and without root an agent would own it. */
        MUST(path, mount("tmpfs", path, "tmpfs", RDONLY | NOSUID | NODEV, next_field()));
    } else if (!strcmp(step, "env")) {
        int i = 0;
        while (environment[i])
            i++;
        errno = E2BIG;
        MUST("environment", i + 1 < MAX_ENVIRONMENT ? 0 : -1);
        environment[i] = strdup(next_field()); /* the message buffer is used again */
    } else {
        errno = EINVAL;
        fail(step);
    }
}

void build_root(void) {
    MUST("new mount namespace", unshare(CLONE_NEWNS));
    MUST("make mounts private", mount(NULL, "/", NULL, REC_PRIVATE, NULL));
    MUST("mount root tmpfs", mount("tmpfs", STAGING, "tmpfs", NOSUID, "mode=0755,size=1m,nr_inodes=512"));
    MUST("chdir", chdir(STAGING));
    umask(0);
    while (more_fields())
        build_step(next_field());
    umask(022);
    /* The new root on top of the old one at the same place, then the old one away: nothing of it can be reached. */
    MUST("pivot_root", syscall(__NR_pivot_root, ".", "."));
    MUST("umount old root", umount2(".", DETACH));
    MUST("chdir", chdir("/"));
    MUST("read-only root", set_attributes(AT_FDCWD, "/", MOUNT_ATTR_RDONLY, 0));
}

/* ---- what one sandbox has for itself ------------------------------------------------------------------------------ */

static int new_tmpfs(const char *size, const char *inodes) {
    int context = syscall(__NR_fsopen, "tmpfs", FSOPEN_CLOEXEC);
    if (context < 0 || configure(context, FSCONFIG_SET_STRING, "size", size, 0) < 0 ||
        configure(context, FSCONFIG_SET_STRING, "nr_inodes", inodes, 0) < 0 ||
        configure(context, FSCONFIG_SET_STRING, "mode", "0755", 0) < 0)
        return -1;
    return finish(context);
}

/* The files of a sealed sandbox below, `store` on top. */
static int new_overlay(int store, const int *layers, int count) {
    int clones[MAX_DESCRIPTORS], context = syscall(__NR_fsopen, "overlay", FSOPEN_CLOEXEC);
    MUST("overlay", context);
    for (int i = 0; i < count; i++) {
        /* A clone, because the kernel wants layers that are mounted in a namespace of ours, until the overlay stands. */
        MUST("layer", clones[i] = open_tree(layers[i], "up", 0));
        MUST("lower layer", configure(context, FSCONFIG_SET_FD, "lowerdir+", NULL, clones[i]));
    }
    MUST("upper", mkdirat(store, "work", 0700));
    int upper = openat(store, "up", O_PATH | O_CLOEXEC), work = openat(store, "work", O_PATH | O_CLOEXEC);
    MUST("upper layer", configure(context, FSCONFIG_SET_FD, "upperdir", NULL, upper));
    MUST("upper layer", configure(context, FSCONFIG_SET_FD, "workdir", NULL, work));
    MUST("overlay", configure(context, FSCONFIG_SET_FLAG, "userxattr", NULL, 0));
    int made = finish(context);
    MUST("overlay", made);
    close(upper);
    close(work);
    for (int i = 0; i < count; i++) {
        close(clones[i]);
        close(layers[i]);
    }
    return made;
}

static void make_folder(int store, const char *path, mode_t mode) {
    MUST(path, mkdirat(store, path, 0700));
    MUST(path, fchmodat(store, path, mode, 0));
}

/* Makes the store and shows its three folders. Returns whether it can be forked from. */
static int build_store(const int *layers, int count) {
    int store = new_tmpfs(hot.limits.store, hot.limits.inodes), can_fork = 1;
    MUST("store", store);
    MUST("store", mkdirat(store, "up", 0755));
    if (!count) {
        make_folder(store, "up/work", 0755);
        make_folder(store, "up/tmp", 01777);
        make_folder(store, "up/shm", 01777);
        MUST("up/work", fchownat(store, "up/work", COMMAND_ID, COMMAND_ID, AT_SYMLINK_NOFOLLOW));
    }
    const char *up = "";
    int tree = count ? new_overlay(store, layers, count) : open_tree(store, "up", 0);
    if (tree < 0 && errno != EINVAL)
        fail("store");
    if (tree < 0) { /* before Linux 6.15 a detached mount cannot be cloned, so it is attached itself: no fork from it */
        can_fork = 0;
        up = "/up";
        tree = dup(store);
    }
    /* Shown at /tmp first, from where its folders are taken to their places. */
    char path[32];
    MUST("store", attach(tree, "/tmp"));
    close(tree);
    for (int i = 0; i < 3; i++) {
        static const char *const names[] = {"work", "shm", "tmp"}, *const places[] = {"/work", "/dev/shm", "/tmp"};
        snprintf(path, sizeof path, "/tmp%s/%s", up, names[i]);
        MUST(path, tree = open_tree(AT_FDCWD, path, 0));
        if (i == 2)
            MUST("umount store", umount2("/tmp", DETACH));
        MUST(places[i], attach(tree, places[i]));
        close(tree);
    }
    MUST("store", dup3(store, STORE, O_CLOEXEC));
    close(store);
    return can_fork;
}

int build_files(const int *layers, int count) {
    int can_fork = build_store(layers, count), verify = new_tmpfs(hot.limits.verify, "4096"), writable;
    /* Two mounts of one tmpfs: the commands' is read-only, the other lives only in this descriptor and is what the host
     * writes through. An agent cannot plant files in it even where it has PID 1's id. */
    MUST("/verify", verify);
    MUST("/verify", attach(verify, "/verify"));
    close(verify);
    MUST("/verify", writable = open_tree(AT_FDCWD, "/verify", 0));
    MUST("/verify", dup3(writable, VERIFY, O_CLOEXEC));
    close(writable);
    MUST("/verify", set_attributes(AT_FDCWD, "/verify", MOUNT_ATTR_RDONLY, 0));
    MUST("mount proc", mount("proc", "/proc", "proc", RDONLY | NOSUID | NODEV | NOEXEC, "hidepid=2"));
    return can_fork;
}
