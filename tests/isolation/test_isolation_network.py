"""Nothing but a loopback of its own can be reached."""

import contextlib
import json
import socket
import uuid

import pytest
from isolation_scene import Scene

REACH = """
def reach(family, kind, address):
    try:
        with socket.socket(family, kind) as s:
            s.settimeout(2); s.connect(address); s.send(b'x'); return 'reached'
    except OSError as error: return errno.errorcode[error.errno]
"""
UNREACHABLE = {
    "name server": ("AF_INET", "SOCK_DGRAM", ("1.1.1.1", 53)),
    "web": ("AF_INET", "SOCK_STREAM", ("1.1.1.1", 443)),
    "cloud metadata": ("AF_INET", "SOCK_STREAM", ("169.254.169.254", 80)),
    "private network": ("AF_INET", "SOCK_STREAM", ("10.0.0.1", 22)),
    "broadcast": ("AF_INET", "SOCK_DGRAM", ("255.255.255.255", 9)),
    "multicast": ("AF_INET", "SOCK_DGRAM", ("224.0.0.1", 9)),
    "IPv6": ("AF_INET6", "SOCK_STREAM", ("2606:4700:4700::1111", 443)),
    "IPv6 of the link": ("AF_INET6", "SOCK_DGRAM", ("ff02::1%1", 9)),
    "mapped IPv4": ("AF_INET6", "SOCK_STREAM", ("::ffff:1.1.1.1", 443)),
}
FAMILIES_ALLOWED = {1, 2, 10}
"""Unix, IPv4, IPv6."""


@pytest.mark.parametrize("name", UNREACHABLE)
async def test_nothing_outside_is_reached(scene: Scene, name: str):
    code = REACH + (
        f"print(json.dumps({{name: reach(getattr(socket, family), getattr(socket, kind), address) "
        f"for name, (family, kind, address) in {UNREACHABLE!r}.items()}}))"
    )
    answer = json.loads(await scene.once(code))[name]
    assert answer in {"ENETUNREACH", "EADDRNOTAVAIL", "EHOSTUNREACH", "EACCES", "ECONNREFUSED", "EINVAL"}, answer


async def test_loopback_is_its_own(scene: Scene):
    """Ports and abstract sockets of the host are not there; own ones work."""
    name = uuid.uuid4().hex
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        everywhere = stack.enter_context(socket.create_server(("", 0)))
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(f"\0{name}")
        abstract.listen()
        ports = [server.getsockname()[1], everywhere.getsockname()[1]]
        said = await scene.python(
            REACH
            + f"""
print(*[reach(socket.AF_INET, 1, ('127.0.0.1', port)) for port in {ports}])
print(reach(socket.AF_UNIX, 1, '\\x00{name}'))
own = socket.create_server(('127.0.0.1', 0)); print(reach(socket.AF_INET, 1, own.getsockname()))
own = socket.create_server(('::1', 0), family=socket.AF_INET6); print(reach(socket.AF_INET6, 1, own.getsockname()))
"""
        )
    assert said.splitlines() == ["ECONNREFUSED ECONNREFUSED", "ECONNREFUSED", "reached", "reached"]


async def test_only_the_loopback_device(scene: Scene):
    said = await scene.python("""
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
names = ctypes.create_string_buffer(4096)
asked = bytearray(struct.pack('iPxxxx', 4096, ctypes.addressof(names)))
fcntl.ioctl(s, 0x8912, asked)
print([names.raw[i:i + 16].rstrip(b'\\0').decode() for i in range(0, struct.unpack_from('i', asked)[0], 40)])
print([line.split(':')[0].strip() for line in open('/proc/net/dev') if ':' in line])
print(len(open('/proc/net/tcp').readlines()), len(open('/proc/net/route').readlines()))
name = struct.pack('16sH22x', b'lo', 0)
print(refused(fcntl.ioctl, s, 0x8914, name), refused(fcntl.ioctl, s, 0x8924, name),
      refused(fcntl.ioctl, s, 0x89a0, b'br0'), refused(s.setsockopt, 0, 64, b'x' * 84))
""")
    assert said.splitlines()[:2] == ["['lo']", "['lo']"]
    assert set(said.splitlines()[3].split()) <= {"EPERM", "ENOPKG", "ENOPROTOOPT", "EOPNOTSUPP"}, said


async def test_other_families_are_refused(scene: Scene):
    """All of them, in all kinds: netlink, packet, vsock, algorithms, Bluetooth, CAN, XDP..."""
    said = await scene.python("""
made = set()
for family in range(64):
    for kind in (1, 2, 3, 4, 5, 6, 10):
        number = call(41, family, kind, 0)
        if isinstance(number, int): made.add((family, kind)); os.close(number)
print(json.dumps(sorted(made)))
""")
    made = {tuple(pair) for pair in json.loads(said)}
    assert {family for family, _ in made} == FAMILIES_ALLOWED
    assert {kind for family, kind in made if family != 1} == {1, 2}, "raw or packet sockets"


async def test_protocols_beside_tcp_and_udp_are_refused(scene: Scene):
    """They are rarely used corners of the kernel, and asking for one can load its module on the host."""
    said = await scene.python("""
made = []
for family in (2, 10):
    for kind in (1, 2, 3, 5, 6):
        for protocol in (1, 2, 33, 47, 58, 103, 115, 132, 136, 143, 255, 256, 262):
            number = call(41, family, kind, protocol)
            if isinstance(number, int): made.append((family, kind, protocol)); os.close(number)
print(json.dumps(made))
""")
    assert json.loads(said) == []
