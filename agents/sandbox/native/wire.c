/* Messages with descriptors over a SOCK_SEQPACKET socket, and the NUL-ended fields in them. */
#include "sandbox.h"

#include <sys/socket.h>

struct hot hot __attribute__((aligned(4096)));
char *environment[MAX_ENVIRONMENT];
static char *cursor, *cursor_end;

void tell(int to, enum op op, uint32_t id, int32_t a, int32_t b, const char *text, int descriptor) {
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
    while (sendmsg(to, &message, MSG_NOSIGNAL) < 0)
        if (errno != EINTR)
            return; /* the other side is gone: the next receive() says so */
}

ssize_t receive(int *descriptors, int *count) {
    union { struct cmsghdr align; char space[CMSG_SPACE(MAX_DESCRIPTORS * sizeof(int))]; } control;
    struct iovec part = {hot.buffer, MAX_MESSAGE};
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
    if (size < (ssize_t)sizeof(struct message))
        return 0;
    hot.buffer[size] = 0;
    return size;
}

void fail(const char *step) {
    tell(SOCKET, FAILED, 0, errno, 0, step, -1);
    _exit(1);
}

void start_fields(char *from, char *end) {
    cursor = from;
    cursor_end = end;
}

int more_fields(void) {
    return cursor < cursor_end;
}

char *next_field(void) {
    char *field = cursor;
    if (!more_fields()) {
        errno = EINVAL;
        fail("specification");
    }
    cursor += strlen(cursor) + 1;
    return field;
}
