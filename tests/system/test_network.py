#!/usr/bin/python3
"""Sandboxes' lines: who can reach what, under a real jailer whose engine this test plays.  The host is a network namespace made
for this; no packet leaves it.  What a guest sends, it sends with all the rights of root in its own network namespace."""
import errno
import os
import select
import socket
import subprocess
import sys
import threading

import line_rig as rig
from line_rig import DIAL, EVERYBODY, PORT, PROXY, PUBLISH, REDIRECT_PORT, STOP, TRANSPARENT, Jail, frame, ipv4, tcp, udp
from own_system import SLOW, below, describe, eventually, need, run_cases, still_alive, work_folder

rig.enter()
WORK = work_folder("network")
JAILS = []
HOST_ADDRESS, OTHER_HOST_ADDRESS = "10.77.0.1", "45.10.20.30"  # of the namespace that plays the host
HOST_PORTS = (22, 80, 8088)


def run(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout


def make_host():
    """Addresses, services on all of them, and a firewall that lets nobody in who is not on the loopback device."""
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "uplink0", "type", "veth", "peer", "name", "uplink1")
    for end in ("uplink0", "uplink1"):
        run("ip", "link", "set", end, "addrgenmode", "none")
    run("ip", "link", "set", "uplink1", "up")
    run("ip", "link", "set", "uplink0", "up")
    for address in (HOST_ADDRESS, OTHER_HOST_ADDRESS):
        run("ip", "address", "add", address + "/24", "dev", "uplink0")
    with open("/proc/sys/net/ipv4/ip_forward", "w", encoding="ascii") as file:
        file.write("1")
    rules = 'table inet filter { chain input { type filter hook input priority 0; policy drop; iif "lo" accept; }\n' \
            'chain forward { type filter hook forward priority 0; policy drop; }; }\n' \
            'table ip nat { chain post { type nat hook postrouting priority 100; masquerade; }; }\n'
    subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)
    services = []
    for port in HOST_PORTS:
        s = socket.create_server(("0.0.0.0", port))
        s.setblocking(False)
        services.append(s)
    return services


def host_state():
    return run("nft", "list", "ruleset"), run("ip", "address"), run("ip", "route", "show", "table", "all"), run("ip", "rule")


SERVICES = make_host()
BEFORE = host_state()


def jail(name="a", **more):
    made = Jail(os.path.join(WORK, name), **more)
    JAILS.append(made)
    return made


def the_jail():
    """One that most cases share."""
    if not JAILS:
        jail("main").set_up()
    return JAILS[0]


def nobody_called():
    for service in SERVICES:
        try:
            service.accept()
        except BlockingIOError:
            continue
        raise AssertionError(f"a guest reached a service of the host's: {service.getsockname()}")


def quiet(listener):
    return not select.select([listener], [], [], 0)[0]


def accept(listener, guest, local):
    s, peer = listener.accept()
    with s:
        need(peer[0] == guest and s.getsockname() == local, f"{peer} at {s.getsockname()}, not {guest} at {local}")


def only_these(made, devices):
    """A stopped sandbox's device goes with its network namespace, some time later."""
    eventually(lambda: set(made.devices()) == set(devices), 20, lambda: f"devices: {made.devices()}, not {devices}")


def all_gone(made):
    only_these(made, [])


# ---- what there is -----------------------------------------------------------------------------------------------------------

def without_a_line_there_is_no_device():
    made = the_jail()
    all_gone(made)
    sandbox = made.sandbox(0)
    need(sandbox.host == sandbox.guest == "0.0.0.0" and not sandbox.listeners, "it was given something")
    need(sandbox.inside(socket.if_nameindex) == [(1, "lo")], "it has another device than lo")
    need(made.devices() == [], "the jailer has one")
    sandbox.stop()


def a_line_is_what_was_said_of_it():
    made = the_jail()
    all_gone(made)
    sandbox = made.sandbox(PROXY)
    parts = [int(part) for part in sandbox.host.split(".")]
    need(parts[:2] == [169, 254] and parts[2] not in (0, 169, 255) and parts[3] % 4 == 1, f"the host's end is {sandbox.host}")
    need(sandbox.guest == ".".join(map(str, [*parts[:3], parts[3] + 1])) and sandbox.prefix == 30, f"the guest's: {sandbox.guest}")
    need(len(sandbox.listeners) == 1 and sandbox.proxy.getsockname() == (sandbox.host, PORT), "the listener is at another place")
    there = sandbox.inside(run, "ip", "-o", "address")
    need(f"eth0    inet {sandbox.guest}/30" in there and "eth0    inet6" not in there, f"the guest's addresses: {there}")
    routes = sandbox.inside(run, "ip", "route")
    need("default" not in routes and routes.count("\n") == 1, f"the guest's routes: {routes}")
    device, = made.devices()
    here = made.there("ip", "-o", "address", "show", "dev", device)
    need(f"{sandbox.host} peer {sandbox.guest}/32" in here and "inet6" not in here, f"the host's addresses: {here}")
    flags = made.there("ip", "link", "show", "dev", device) + sandbox.inside(run, "ip", "link", "show", "dev", "eth0")
    need(flags.count("NOARP") == 2, f"a line carries ARP: {flags}")
    sandbox.inside(rig.connect, sandbox.host)
    accept(sandbox.proxy, sandbox.guest, (sandbox.host, PORT))
    sandbox.stop()
    all_gone(made)


def nothing_of_the_host_is_touched():
    made = the_jail()
    sandbox = made.sandbox(PROXY | TRANSPARENT | PUBLISH)
    need(host_state() == BEFORE, "the host's rules, addresses or routes are others")
    sandbox.stop()
    need(host_state() == BEFORE, "the host's rules, addresses or routes are others")


def a_guest_finds_its_line_and_cannot_change_it():
    """As a guest is: no rights over its network, and a system call filter."""
    made = the_jail()
    sandbox = made.sandbox(PROXY | TRANSPARENT)
    sandbox.configure(resolver=sandbox.host)
    code, said = sandbox.ask("cat /etc/resolv.conf; ip address show dev eth0")
    need(code == 0 and f"nameserver {sandbox.host}\n" in said and f"inet {sandbox.guest}/30" in said, f"the guest sees: {said}")
    for command in ("ip address add 169.254.7.7/30 dev eth0", "ip address flush dev eth0", "ip link set eth0 down",
                    "ip route add 10.0.0.0/8 dev eth0", "ip route del default", "ip link set eth0 address 02:00:00:00:00:07",
                    "ip neigh add 169.254.7.7 lladdr 02:00:00:00:00:07 dev eth0", "arping -c 1 -I eth0 " + sandbox.host,
                    "ping -c 1 " + sandbox.host, "echo 0 > /proc/sys/net/ipv6/conf/eth0/disable_ipv6", "ifconfig eth0 169.254.7.7"):
        code, said = sandbox.ask(command)
        need(code != 0, f"{command}: done: {said}")
    code, said = sandbox.ask("cat /proc/sys/net/ipv6/conf/eth0/disable_ipv6 2>/dev/null || echo 1")
    need(said.strip() == "1", "IPv6 is not off")
    # nc ends when the connection is closed from here.
    caller = threading.Thread(target=accept, args=(sandbox.proxy, sandbox.guest, (sandbox.host, PORT)))
    caller.start()
    code, said = sandbox.ask(f"ip address show dev eth0; nc {sandbox.host} {PORT} </dev/null")
    caller.join()
    need(code == 0 and f"inet {sandbox.guest}/30" in said, f"something changed: {said}")
    sandbox.stop()


def the_helper_and_the_jailer_have_few_rights():
    made = the_jail()

    def rights(pid):
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            lines = dict(line.rstrip().split(":\t") for line in file if line.startswith(("CapEff", "CapPrm", "CapBnd", "NoNewPrivs")))
        return {name: int(value, 16) for name, value in lines.items()}
    keeper = rights(made.helper())
    allowed = 1 << 12 | 1 << 10  # NET_ADMIN, NET_BIND_SERVICE
    need(keeper == {"CapEff": allowed, "CapPrm": allowed, "CapBnd": allowed, "NoNewPrivs": 1}, f"the helper has {keeper}")
    need(rights(made.process.pid)["CapBnd"] & (1 << 12 | 1 << 13 | 1 << 10) == 0, "the jailer has rights over networks")
    need(os.stat(f"/proc/{made.helper()}/ns/net").st_ino != os.stat("/proc/self/ns/net").st_ino, "it is in the host's namespace")
    settings = made.there("cat", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/disable_ipv6")
    need(settings.split() == ["0", "1"], f"its namespace's settings: {settings}")


# ---- who can reach what ------------------------------------------------------------------------------------------------------

def free_hand(gateway):
    """In a guest: routes for everything."""
    run("ip", "route", "replace", "default", "via", gateway)


def only_the_proxys_port_is_reached():
    made = the_jail()
    sandbox, other = made.sandboxes(2, PROXY)
    sandbox.inside(free_hand, sandbox.host)
    targets = [(sandbox.host, port) for port in (1, 22, 53, 80, 443, REDIRECT_PORT, PORT - 1, 65535)]
    targets += [(address, port) for address in (HOST_ADDRESS, OTHER_HOST_ADDRESS, "127.0.0.1", "169.254.169.254", other.host,
                                                other.guest, "198.18.0.1", "1.2.3.4") for port in (*HOST_PORTS, PORT)]
    targets = [t for t in targets if t[0] != "127.0.0.1"]
    got = sandbox.inside(rig.none_answers, targets, sandbox.host)
    need(got == [], f"these answered: {got}")
    accept(sandbox.proxy, sandbox.guest, (sandbox.host, PORT))
    need(quiet(sandbox.proxy) and quiet(other.proxy), "somebody else's connection arrived")
    nobody_called()
    sandbox.stop()
    other.stop()


def spoofed(sandbox, other):
    """Each with the number of the rule that must drop it."""
    me, host = sandbox.guest, sandbox.host
    sources = [host, other.guest, other.host, "127.0.0.1", HOST_ADDRESS, "0.0.0.0", "255.255.255.255", "224.0.0.1",
               me.rsplit(".", 1)[0] + "." + str(int(me.rsplit(".", 1)[1]) + 1),  # the broadcast address
               me.rsplit(".", 1)[0] + "." + str(int(me.rsplit(".", 1)[1]) - 2)]  # the network's own
    frames = [frame(tcp(source, host, PORT)) for source in sources]
    frames += [frame(udp(source, host, 53)) for source in sources]
    targets = [other.host, other.guest, HOST_ADDRESS, OTHER_HOST_ADDRESS, "127.0.0.1", "255.255.255.255", "224.0.0.1", me,
               host.rsplit(".", 1)[0] + ".255"]
    frames += [frame(tcp(me, target, PORT)) for target in targets]
    frames += [frame(udp(me, target, PORT), target=EVERYBODY) for target in targets]
    # Other protocols and ports to the right place; pieces of packets; flags that nobody sends.
    frames += [frame(udp(me, host, port)) for port in (53, PORT, 67, 5353)]
    frames += [frame(ipv4(me, host, protocol, b"\x08\0\xf7\xff\0\0\0\0" + b"x" * 24)) for protocol in (1, 2, 4, 41, 47, 50, 132, 255)]
    frames += [frame(ipv4(me, host, 6, b"x" * 24, fragment=0x2000 | 8)), frame(ipv4(me, host, 17, b"x" * 24, fragment=64))]
    return frames


def other_layers(sandbox, other):
    """What is not IPv4: ARP, IPv6, VLANs, and what else has a number."""
    def arp(target, source):
        return b"\0\1\x08\0\6\4\0\1" + rig.GUEST_MAC + socket.inet_aton(source) + b"\0" * 6 + socket.inet_aton(target)
    def ipv6(payload, following, target):
        return b"\x60\0\0\0" + len(payload).to_bytes(2, "big") + bytes([following, 255]) \
            + socket.inet_pton(socket.AF_INET6, "fe80::2") + socket.inet_pton(socket.AF_INET6, target) + payload
    frames = [frame(arp(target, source), 0x0806, EVERYBODY) for target in (sandbox.host, other.host, HOST_ADDRESS, sandbox.guest)
              for source in (sandbox.guest, "0.0.0.0", other.guest)]
    for target in ("ff02::1", "ff02::2", "fe80::1", "::1", "::ffff:" + sandbox.host):
        frames += [frame(ipv6(bytes([kind, 0]) + b"\0" * 22, 58, target), 0x86DD, b"\x33\x33\0\0\0\1") for kind in (128, 133, 134, 135)]
        frames += [frame(ipv6(b"\x10\xe1\x1f\x90" + b"\0" * 16, 6, target), 0x86DD)]
    inner = tcp(sandbox.guest, sandbox.host, PORT)
    frames += [frame(b"\0\7\x08\0" + inner, kind) for kind in (0x8100, 0x88A8)]
    frames += [frame(b"\0" * 64, kind) for kind in (0x8863, 0x8864, 0x88CC, 0x888E, 0x8847, 0x0842, 0x9000, 0x0000, 0x0100)]
    frames += [frame(inner, target=b"\2\0\0\0\0\7"), b"\0" * 14, frame(b"")]
    return frames


def whatever_a_guest_sends_nothing_answers():
    made = the_jail()
    sandbox, other = made.sandboxes(2, PROXY)
    ours = spoofed(sandbox, other)
    before = made.dropped()
    came = sandbox.inside(rig.send_frames, ours, sandbox.host)
    need(came == [], f"the guest was sent {came}")
    after = made.dropped()
    count = sum(after.values()) - sum(before.values())
    # The kernel itself drops some before the rules; every rule has dropped some.
    need(count <= len(ours) and all(after[name] > before[name] for name in ("source", "address", "port")), f"{before} {after}")
    need(after["passed"] == before["passed"] and after["left"] == before["left"], f"something was passed on: {before} {after}")
    accept(sandbox.proxy, sandbox.guest, (sandbox.host, PORT))
    came = sandbox.inside(rig.send_frames, other_layers(sandbox, other), sandbox.host)
    need(came == [], f"the guest was sent {came}")
    accept(sandbox.proxy, sandbox.guest, (sandbox.host, PORT))
    need(quiet(sandbox.proxy) and quiet(other.proxy), "a connection arrived from nowhere")
    nobody_called()
    sandbox.stop()
    other.stop()
    return f"{len(ours)} packets, {count} counted"


def another_address_is_no_use_to_a_guest():
    """It takes a neighbour's address, or more of them; nothing comes of it, for it or for the neighbour."""
    made = the_jail()
    sandbox, other = made.sandboxes(2, PROXY)

    def pretend(addresses, host):
        for address in addresses:
            run("ip", "address", "add", address + "/16", "dev", "eth0")
        begun = []
        for address in addresses:
            s = socket.socket()
            s.bind((address, 0))
            s.setblocking(False)
            try:
                s.connect((host, PORT))
            except BlockingIOError:
                pass
            begun.append(s)
        s = socket.socket()
        s.bind((my_address, 0))
        s.settimeout(20 * SLOW)
        s.connect((host, PORT))
        return [address for address, one in zip(addresses, begun) if not rig.unanswered(one)]
    my_address = sandbox.guest
    got = sandbox.inside(pretend, [other.guest, other.host, "169.254.1.250", HOST_ADDRESS], sandbox.host)
    need(got == [], f"heard as {got}")
    accept(sandbox.proxy, sandbox.guest, (sandbox.host, PORT))
    other.inside(rig.connect, other.host)
    accept(other.proxy, other.guest, (other.host, PORT))
    need(quiet(sandbox.proxy) and quiet(other.proxy), "a connection arrived at the wrong place")
    sandbox.stop()
    other.stop()


def bound_device(listener):
    return listener.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).split(b"\0")[0].decode()


def transparent_lines_have_their_listeners():
    made = the_jail()
    sandbox, plain = made.sandbox(PROXY | TRANSPARENT), made.sandbox(PROXY)
    proxy, transparent, dns_udp, dns_tcp = sandbox.listeners
    need([s.getsockname() for s in sandbox.listeners] == [(sandbox.host, port) for port in (PORT, REDIRECT_PORT, 53, 53)], "places")
    own, its = (made.there("ip", "-o", "address", "show", "to", one.host).split()[1] for one in (sandbox, plain))
    need(own != its, f"both lines are called {own}")
    only_these(made, {own, its})
    need([bound_device(s) for s in sandbox.listeners + plain.listeners] == [own] * 4 + [its], "a listener is not its line's only")
    need([s.type for s in sandbox.listeners] == [socket.SOCK_STREAM] * 2 + [socket.SOCK_DGRAM, socket.SOCK_STREAM], "types")
    need("default via " + sandbox.host in sandbox.inside(run, "ip", "route"), "no default route")
    for address, port in (("198.18.0.1", 443), ("198.19.255.254", 22), ("198.18.0.0", 1), ("198.18.7.7", PORT), ("198.18.7.7", 53)):
        sandbox.inside(rig.connect, address, port)
        accept(transparent, sandbox.guest, (address, port))
    sandbox.inside(rig.connect, sandbox.host)
    accept(proxy, sandbox.guest, (sandbox.host, PORT))
    sandbox.inside(rig.connect, sandbox.host, 53)
    accept(dns_tcp, sandbox.guest, (sandbox.host, 53))

    def question(host):
        with socket.socket(type=socket.SOCK_DGRAM) as s:
            s.connect((host, 53))
            s.send(b"question")
            return s.getsockname()
    name = sandbox.inside(question, sandbox.host)
    data, peer = dns_udp.recvfrom(512)
    need(data == b"question" and peer == name and peer[0] == sandbox.guest, f"DNS: {data} of {peer}")
    # The rest is as on any line.
    targets = [(sandbox.host, REDIRECT_PORT), (sandbox.host, 22), ("198.17.255.255", 80), ("198.20.0.0", 80), (HOST_ADDRESS, 80),
               ("1.2.3.4", 443), (plain.host, PORT), (plain.guest, 80)]
    got = sandbox.inside(rig.none_answers, targets, sandbox.host)
    need(got == [], f"these answered: {got}")
    accept(proxy, sandbox.guest, (sandbox.host, PORT))
    need(sandbox.inside(rig.send_frames, [frame(udp(sandbox.guest, "198.18.0.1", 443)), frame(udp(sandbox.guest, "198.18.0.1", 53))],
                        sandbox.host) == [], "UDP of the range is answered")
    accept(proxy, sandbox.guest, (sandbox.host, PORT))
    need(quiet(transparent) and quiet(dns_udp), "UDP of the range arrived")
    # A line that is not transparent has none of it.
    plain.inside(free_hand, plain.host)
    got = plain.inside(rig.none_answers, [("198.18.0.1", 443), (plain.host, 53), (plain.host, REDIRECT_PORT)], plain.host)
    need(got == [], f"these answered on a plain line: {got}")
    accept(plain.proxy, plain.guest, (plain.host, PORT))
    need(quiet(transparent) and quiet(dns_tcp), "a neighbour's connection arrived")
    sandbox.stop()
    plain.stop()


def published_lines_are_dialled_and_dial_nobody():
    made = the_jail()
    sandbox, neighbour, closed = made.sandbox(PUBLISH), made.sandbox(PUBLISH), made.sandbox(PROXY)
    need(not sandbox.listeners, "it has a listener")
    need("default" not in sandbox.inside(run, "ip", "route"), "it has a default route")
    service = make_service(sandbox, 80)
    try:
        answer = made.call(DIAL, slot=sandbox.slot)
        need(answer.error == 0 and len(answer.fds) == 1, f"dial: {answer}")
        with socket.socket(fileno=answer.fds[0]) as s:
            need(not s.getblocking() or s.gettimeout() is None, "it blocks")
            s.settimeout(20 * SLOW)
            s.connect((sandbox.guest, 80))
            need(s.getsockname()[0] == sandbox.host, f"it comes from {s.getsockname()}")
            s.sendall(b"hello")
            need(s.recv(100) == b"hello", "no echo")
        # From such a socket, nobody else is reached.
        for target in ((neighbour.guest, 80), (HOST_ADDRESS, 80), (closed.guest, 80), ("127.0.0.1", 80)):
            with socket.socket(fileno=made.call(DIAL, slot=sandbox.slot).fds[0]) as s:
                s.setblocking(False)
                code = s.connect_ex(target)
                need(code in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EPERM, errno.EINVAL, errno.ECONNREFUSED, errno.EINPROGRESS),
                     f"{target}: {code}")
                need(code != errno.EINPROGRESS or rig.unanswered(s), f"{target} was reached")
    finally:
        service.kill()
        service.wait()
    need(made.call(DIAL, slot=closed.slot).error == -errno.EPERM, "a line that is not published is dialled")
    need(made.call(DIAL, slot=4000).error == -errno.ENOENT, "one that is not there is dialled")
    nobody_called()
    # What is inside begins nothing, and has no proxy.
    came = sandbox.inside(published_knocks, sandbox.guest, sandbox.host)
    need(came == [], f"these answered: {came}")
    for one in (sandbox, neighbour, closed):
        one.stop()


def published_knocks(guest, host):
    """Without a connection to wait for: a packet that is refused by the host's end (an ACK to nowhere) is the fence."""
    run("ip", "route", "replace", "default", "via", host)
    targets = [(host, port) for port in (PORT, 53, 80, REDIRECT_PORT)] + [(HOST_ADDRESS, 80), ("198.18.0.1", 80)]
    begun = rig.knock(targets)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as raw:
        raw.bind(("eth0", 0))
        raw.send(frame(tcp(guest, host, 9, flags=0x10)))
        raw.settimeout(20 * SLOW)
        while True:
            data, where = raw.recvfrom(2048)
            if where[2] != 4 and data[34:36] == b"\0\x09":
                break
    return [target for target, s in zip(targets, begun) if not rig.unanswered(s)]


ECHO = """
import socket
s = socket.create_server(("0.0.0.0", %d))
print("ready", flush=True)
while True:
    c, _ = s.accept()
    c.sendall(c.recv(100))
    c.close()
"""


def make_service(sandbox, port):
    """An echo server in the guest's namespace; its process."""
    made = subprocess.Popen(["nsenter", f"--net=/proc/{sandbox.pid}/ns/net", sys.executable, "-c", ECHO % port],
                            stdout=subprocess.PIPE)
    need(made.stdout.readline() == b"ready\n", "the service did not start")
    return made


# ---- limits --------------------------------------------------------------------------------------------------------------------

def a_flood_fills_nothing_of_the_hosts():
    made = the_jail()
    sandbox, other = made.sandboxes(2, PROXY | TRANSPARENT)

    def flood(host):
        import resource  # pylint: disable=import-outside-toplevel
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
        begun = rig.knock([(host, PORT), ("198.18.0.1", 443)] * 1500)
        # What the guest's own end takes for established; those that the other end has no place for are among them.
        mine = sum(1 for s in begun if not isinstance(s, int) and not rig.unanswered(s))
        return len(begun), mine, made.there("ss", "-Htan", "state", "established").count("\n")
    sent, mine, waiting = sandbox.inside(flood, sandbox.host)
    need(0 < waiting <= 2 * 129 and mine >= waiting, f"{waiting} connections wait to be accepted, {mine} of {sent} answered")
    other.inside(rig.connect, other.host)
    accept(other.proxy, other.guest, (other.host, PORT))
    tables = made.there("sh", "-c", "cat /proc/sys/net/netfilter/nf_conntrack_count 2>/dev/null || echo 0").split()
    need(tables == ["0"], f"connections are tracked: {tables}")
    sandbox.stop()
    other.stop()
    return f"{waiting} of {sent} connections were held"


def sixty_at_once():
    made = the_jail()
    sandboxes = made.sandboxes(60, PROXY | TRANSPARENT)
    need(len({s.host for s in sandboxes}) == 60, "addresses are shared")
    eventually(lambda: len(made.devices()) == 60, 20, lambda: f"{len(made.devices())} devices")
    for sandbox in sandboxes:
        sandbox.inside(rig.connect, sandbox.host)
        sandbox.inside(rig.connect, "198.18.0.9", 443)
    for sandbox in sandboxes:
        accept(sandbox.proxy, sandbox.guest, (sandbox.host, PORT))
        accept(sandbox.listeners[1], sandbox.guest, ("198.18.0.9", 443))
        need(quiet(sandbox.proxy) and quiet(sandbox.listeners[1]), "a neighbour's connection arrived")
    stops = [made.send(STOP, slot=sandbox.slot) for sandbox in sandboxes]
    for stop in stops:
        need(made.await_answer(stop).error == 0, "one cannot be stopped")
    for sandbox in sandboxes:
        made.await_exit(sandbox.slot)
        sandbox.let_go()
    all_gone(made)
    need(host_state() == BEFORE, "the host's rules, addresses or routes are others")


def a_pool_can_be_used_up():
    made = jail("small", pool="10.9.8.8/29").set_up()
    first, second = made.sandboxes(2, PROXY)
    need({first.host, second.host} == {"10.9.8.9", "10.9.8.13"}, f"{first.host} {second.host}")
    answer, _ = made.try_start(PROXY)
    need(answer.error == -errno.EADDRNOTAVAIL and "pool" in answer.detail, f"the third: {answer}")
    made.sandbox(0).stop()  # which needs none
    gone = first.host
    first.stop()

    def again():
        answer, control = made.try_start(PROXY)
        if answer.error != 0:
            need(answer.error == -errno.EADDRNOTAVAIL, f"{answer}")
            return None
        control.close()
        return answer
    need(eventually(again, 20, "its address does not come free").host == gone, "another address")
    second.let_go()
    made.stop()


def instances_share_a_pool():
    one, two = jail("one", pool="10.9.8.8/29").set_up(), jail("two", pool="10.9.8.0/28").set_up()
    mine, others = one.sandboxes(2, PROXY), two.sandboxes(2, PROXY)
    need({s.host for s in others} == {"10.9.8.1", "10.9.8.5"}, f"{[s.host for s in others]}")
    need(two.try_start(PROXY)[0].error == -errno.EADDRNOTAVAIL, "an address is given twice")
    for sandbox in mine + others:
        sandbox.inside(rig.connect, sandbox.host)
        accept(sandbox.proxy, sandbox.guest, (sandbox.host, PORT))
    for sandbox in mine:
        sandbox.let_go()
    one.stop()
    # What one of them had is the other's now.
    got = two.sandboxes(2, PROXY)
    need({s.host for s in got} == {"10.9.8.9", "10.9.8.13"}, f"{[s.host for s in got]}")
    for sandbox in others + got:
        sandbox.let_go()
    two.stop()


def a_jailer_short_of_descriptors_recovers():
    """Starts in a burst, with fewer descriptors than they need: each has a line or an error, and none leaves anything."""
    made = jail("few", prefix=("prlimit", "--nofile=260:260")).set_up()
    made.sandbox(PROXY | TRANSPARENT).stop()
    refused = 0
    for _ in range(3):
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(60)]
        requests = [made.send(rig.START, fds=[theirs.fileno()], line=PROXY | TRANSPARENT) for _, theirs in pairs]
        answers = {}
        while len(answers) < len(requests):
            answer = made.receive()
            need(answer.op != rig.EXITED and answer.id in requests, f"unexpected {answer}")
            answers[answer.id] = answer
        for answer in answers.values():
            need(answer.error == 0 and len(answer.fds) == 4 or answer.error in (-errno.EMFILE, -errno.ENFILE) and not answer.fds,
                 f"{answer}, {len(answer.fds)} descriptors")
        refused += sum(1 for answer in answers.values() if answer.error != 0)
        for ours, theirs in pairs:
            ours.close()
            theirs.close()
        for answer in answers.values():
            if answer.error == 0:
                made.await_exit(answer.slot)
            for fd in answer.fds:
                os.close(fd)
        all_gone(made)
    need(refused > 0, "there were enough descriptors")
    sandbox = made.sandbox(PROXY | TRANSPARENT)
    sandbox.inside(rig.connect, sandbox.host)
    accept(sandbox.proxy, sandbox.guest, (sandbox.host, PORT))
    sandbox.stop()
    made.stop()
    return f"{refused} of 180 were refused"


def what_cannot_be_is_said_so():
    made = jail("errors").start()
    answer, _ = made.try_start(PROXY)
    need(answer.error == -errno.ENETDOWN, f"a line before NETWORK: {answer}")
    answer = made.network(synthetic="169.254.0.0", prefix=16)
    need(answer.error == -errno.EINVAL and "overlap" in answer.detail, f"a range within the pool: {answer}")
    need(made.network(synthetic="0.0.0.0", prefix=0).error == 0, "a network without a range")
    answer, _ = made.try_start(PROXY | TRANSPARENT)
    need(answer.error == -errno.EINVAL and "synthetic" in answer.detail, f"a transparent line without a range: {answer}")
    sandbox = made.sandbox(PROXY)
    need(made.network().error == -errno.EBUSY, "the network is changed under a line")
    sandbox.stop()
    eventually(lambda: made.network(port=9999, prefix=16).error == 0, 20, "the network cannot be changed")
    sandbox = made.sandbox(PROXY | TRANSPARENT)
    need([s.getsockname()[1] for s in sandbox.listeners] == [9999, 10000, 53, 53], "the ports are the old ones")
    sandbox.inside(rig.connect, sandbox.host, 9999)
    sandbox.inside(rig.connect, "198.18.0.1", 9999)
    need(sandbox.inside(rig.none_answers, [(sandbox.host, PORT), ("198.19.0.1", 80)], sandbox.host, 9999) == [], "old ones answer")
    sandbox.let_go()
    made.stop()
    none = jail("none", pool="none").start()
    answer = none.network()
    need(answer.error == -errno.ENETDOWN and "--network-pool" in answer.detail, f"without a pool: {answer}")
    need(none.try_start(PROXY)[0].error == -errno.ENETDOWN, "a line without a pool")
    none.sandbox(0).stop()
    none.stop()


def without_nft_the_reason_is_said():
    for spoil, word in (("mount --bind /bin/false /usr/sbin/nft", "refused"), ("mount -t tmpfs none /usr/sbin", "nftables")):
        made = jail("spoilt" + word, prefix=("unshare", "--mount", "sh", "-c", spoil + ' && exec "$@"', "sh")).start()
        answer = made.network()
        need(answer.error == -errno.ENETDOWN and word in answer.detail, f"{spoil}: {answer}")
        need(made.try_start(PROXY)[0].error == -errno.ENETDOWN, "a line without rules")
        made.stop()


# ---- ends ------------------------------------------------------------------------------------------------------------------------

def a_start_that_is_given_up_leaves_no_line():
    made = the_jail()
    if made.template is None:
        made.mount()
    for _ in range(10):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = made.send(rig.START, fds=[theirs.fileno()], line=PROXY)
        theirs.close()
        ours.close()  # its agent ends as soon as it runs
        answer = made.await_answer(request)
        need(answer.error in (0, -errno.ECANCELED), f"{answer}")
        if answer.error == 0:
            made.await_exit(answer.slot)
            for fd in answer.fds:
                os.close(fd)
    all_gone(made)


def a_killed_jailer_leaves_nothing_and_starts_anew():
    made = jail("crash").set_up()
    for _ in range(3):
        sandboxes = made.sandboxes(4, PROXY | TRANSPARENT | PUBLISH)
        processes = below(made.process.pid)
        made.send(rig.START, fds=[sandboxes[0].control.fileno()], line=PROXY)
        made.kill()
        eventually(lambda known=processes: not still_alive(known), 20,
                   lambda known=processes: "left: " + ", ".join(describe(pid) for pid in still_alive(known)))
        need(host_state() == BEFORE, "the host's rules, addresses or routes are others")
        for sandbox in sandboxes:
            sandbox.let_go()
        made.start()
        need(made.network().error == 0 and made.devices() == [], "the next life is not a new one")
    made.sandbox(PROXY).let_go()
    made.stop()


def a_killed_helper_stops_new_lines_only():
    made = jail("helper").set_up()
    sandbox = made.sandbox(PROXY)
    os.kill(made.helper(), 9)
    sandbox.inside(rig.connect, sandbox.host)
    accept(sandbox.proxy, sandbox.guest, (sandbox.host, PORT))

    def refused():
        answer, _ = made.try_start(PROXY)
        return answer.error == -errno.ENETDOWN
    eventually(refused, 20, "a line is made without a helper")
    need(made.network().error == -errno.ENETDOWN, "a network is made without a helper")
    made.sandbox(0).stop()
    sandbox.stop()
    made.stop()


def the_network_goes_with_the_jailer():
    made = the_jail()
    sandboxes = made.sandboxes(5, PROXY)
    for sandbox in sandboxes:
        sandbox.let_go()
    made.stop()
    need(host_state() == BEFORE, "the host's rules, addresses or routes are others")


CASES = [without_a_line_there_is_no_device, a_line_is_what_was_said_of_it, nothing_of_the_host_is_touched,
         a_guest_finds_its_line_and_cannot_change_it, the_helper_and_the_jailer_have_few_rights, only_the_proxys_port_is_reached,
         whatever_a_guest_sends_nothing_answers, another_address_is_no_use_to_a_guest, transparent_lines_have_their_listeners,
         published_lines_are_dialled_and_dial_nobody, a_flood_fills_nothing_of_the_hosts, sixty_at_once, a_pool_can_be_used_up,
         instances_share_a_pool, a_jailer_short_of_descriptors_recovers, what_cannot_be_is_said_so, without_nft_the_reason_is_said,
         a_start_that_is_given_up_leaves_no_line, a_killed_jailer_leaves_nothing_and_starts_anew,
         a_killed_helper_stops_new_lines_only, the_network_goes_with_the_jailer]

run_cases(CASES, WORK, lambda: JAILS)
