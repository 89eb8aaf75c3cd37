/* Shared by the zygote's four sources: the protocol with host.py, and how a failing step is reported. */
#ifndef SANDBOX_H
#define SANDBOX_H
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <unistd.h>

enum {
    SOCKET = 0, /* of the zygote to its factory, of PID 1 to its sandbox object */
    STORE = 1,  /* in PID 1: the file system behind /work, /tmp and /dev/shm, detached, so that it can be forked from */
    VERIFY = 2, /* in PID 1: the writable mount of /verify */
    COMMAND_ID = 1000, /* user and group of commands, as they see it */
    MAX_MESSAGE = 192 * 1024,
    MAX_DESCRIPTORS = 128, /* of one message: a socket, cgroups, layers */
    MAX_ENVIRONMENT = 32,
    MAX_COMMANDS = 256, /* that run at once in one sandbox */
};

/* Factory to zygote: ROOT (data = the steps of root.c), CREATE (id = host id of commands or 0 for a fresh one, a = number
 * of cgroups, b = number of layers; data = fields of `struct limits`; descriptors = socket, cgroups, layers top first).
 * Sandbox to PID 1: EXEC (id; data = cwd and arguments, each ended by NUL; descriptors = [stdin,] stdout, stderr),
 * KILL (id), KILL_ALL, FOLDER (a = 0 /work, 1 /verify), SEAL.
 * Answers: BORN (a = pid on the host, b = host id of commands, id = 1 when commands have an id of their own), READY (a = 1
 * when the sandbox can be forked from), FAILED (a = errno, data = step), EXITED (id, a = wait status), DONE (id: the
 * request is carried out; for FOLDER and SEAL with the descriptor). */
enum op { ROOT = 1, CREATE, EXEC, KILL, KILL_ALL, FOLDER, SEAL, BORN, READY, FAILED, EXITED, DONE };

struct message {
    uint32_t op, id;
    int32_t a, b;
    char data[];
};

struct limits {
    rlim_t memory, file, processes, open_files;
    int own_id; /* commands have an id other than PID 1's */
    int idle;   /* run only where others leave the processor idle */
    const char *store, *inodes, *verify; /* tmpfs sizes */
};

/* All that the zygote and PID 1s write to, side by side: a PID 1 owns one page of it and shares the rest of the program. */
struct hot {
    struct { pid_t pid; uint32_t id; } commands[MAX_COMMANDS];
    struct limits limits;
    int sealed;
    char *cursor, *cursor_end;               /* of next_field() */
    int descriptors[MAX_DESCRIPTORS], count; /* that came with the message in `buffer` */
    char control[1024];                      /* room for them in the kernel's form */
    char buffer[MAX_MESSAGE + 1] __attribute__((aligned(8)));
};
extern struct hot hot;
extern char *environment[MAX_ENVIRONMENT];

/* wire.c */
void tell(int to, enum op op, uint32_t id, int32_t a, int32_t b, const char *text, int descriptor);
ssize_t receive(void); /* the next message into `hot`: its size, 0 at the end */
void fail(const char *step);                   /* FAILED with errno, and the end of this process */
void start_fields(char *from, char *end);
char *next_field(void);
int more_fields(void);

#define MUST(step, call) \
    do { \
        if ((call) < 0) \
            fail(step); \
    } while (0)

/* root.c */
void build_root(void);                              /* in the zygote, once: what all sandboxes share */
int build_files(const int *layers, int count);      /* in PID 1: what is its own; can it be forked from? */

/* init.c */
void serve(int can_fork) __attribute__((noreturn)); /* PID 1 from here on */

#endif
