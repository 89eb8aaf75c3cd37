/* Messages with descriptors over a SOCK_SEQPACKET socket, and the NUL-ended fields in them. */
#include "sandbox.h"

#include <sys/socket.h>

struct hot hot __attribute__((aligned(4096)));
char *environment[MAX_ENVIRONMENT];

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

ssize_t receive(void) {
    _Static_assert(sizeof hot.control >= CMSG_SPACE(sizeof hot.descriptors), "room for descriptors");
    struct iovec part = {hot.buffer, MAX_MESSAGE};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = hot.control, .msg_controllen = CMSG_SPACE(sizeof hot.descriptors)};
    ssize_t size;
    while ((size = recvmsg(SOCKET, &message, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR)
        ;
    hot.count = 0;
    struct cmsghdr *c = size > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (c && c->cmsg_type == SCM_RIGHTS) {
        hot.count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(hot.descriptors, CMSG_DATA(c), hot.count * sizeof(int));
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
    hot.cursor = from;
    hot.cursor_end = end;
}

int more_fields(void) {
    return hot.cursor < hot.cursor_end;
}

char *next_field(void) {
    char *field = hot.cursor;
    if (!more_fields()) {
        errno = EINVAL;
        fail("specification");
    }
    hot.cursor += strlen(hot.cursor) + 1;
    return field;
}
