"""Who is where in the internet of the test. Both sides of it read this file."""

# The machine that sandboxes run on: a public-looking address, a private one, and IPv6. A careless way out would lead to it.
MACHINE_V4 = "45.76.10.2"
MACHINE_PRIVATE = "192.168.77.2"
MACHINE_V6 = "2a02:2f0::2"
# The world's end of the cable.
WORLD_V4 = "45.76.10.1"
WORLD_PRIVATE = "192.168.77.1"
WORLD_V6 = "2a02:2f0::1"
# The name server that the machine asks, and nobody else may.
NAME_SERVER = "9.9.9.53"

# Another, for when the machine has moved.
OTHER_NAME_SERVER = "149.112.112.112"
# Where packets vanish, as IPv6 does on many machines.
BLACK_HOLE = "2a03:dead::1"

GOOD = ("93.184.215.14", "2606:2800:21f:cb07::14")
# Allowed by its address, in the policy with named rules.
GOOD_ADDRESS = "93.184.215.20"
EVIL = ("185.199.66.6", "2a03:2880:f10c::66")
REGISTRY = ("151.101.0.223", "2a04:4e42::223")
CODE_HOST = ("140.82.121.4", "2606:50c0:8000::154")

# Public names and where they lead; each may have other names beneath it in NAMES.
PUBLIC = {
    "good.test": GOOD,
    "evil.test": EVIL,
    "pypi.org": REGISTRY,
    "files.pythonhosted.org": REGISTRY,
    "registry.npmjs.org": REGISTRY,
    "index.crates.io": REGISTRY,
    "static.crates.io": REGISTRY,
    "deb.debian.org": REGISTRY,
    "github.com": CODE_HOST,
    "dns.google": ("8.8.8.8", "2001:4860:4860::8888"),
}

# Names that are allowed, and lead where nobody may go.
TRAPS = {
    "private.good.test": ["10.0.0.1"],
    "private-b.good.test": ["172.16.0.1"],
    "private-c.good.test": ["192.168.0.1"],
    "shared.good.test": ["100.64.0.1"],
    "metadata.good.test": ["169.254.169.254"],
    "provider.good.test": ["168.63.129.16"],
    "loopback.good.test": ["127.0.0.1"],
    "nowhere.good.test": ["0.0.0.0"],
    "own.good.test": [MACHINE_V4],
    "own-private.good.test": [MACHINE_PRIVATE],
    "own-six.good.test": [MACHINE_V6],
    "loopback-six.good.test": ["::1"],
    "unspecified-six.good.test": ["::"],
    "private-six.good.test": ["fd00::1"],
    "cable-six.good.test": ["fe80::1"],
    "mapped.good.test": ["::ffff:10.0.0.1"],
    "translated.good.test": ["64:ff9b::a9fe:a9fe"],
    "sixtofour.good.test": ["2002:a00:1::1"],
    "teredo.good.test": ["2001:0:a00:1::f5ff:fffe"],
    "group.good.test": ["224.0.0.1"],
    "stand-in.good.test": ["198.18.0.1"],
}

# Where no packet of a sandbox may ever come, whatever its policy (unless it names the address).
FORBIDDEN = [
    "169.254.169.254",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.0.1",
    "100.64.0.1",
    "168.63.129.16",
    "192.0.0.192",
    "198.18.255.254",
    "240.0.0.1",
    "224.0.0.1",
    "255.255.255.255",
    "0.0.0.0",
    "127.0.0.1",
    MACHINE_V4,
    MACHINE_PRIVATE,
    "::1",
    "::",
    MACHINE_V6,
    "fd00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
    "::ffff:10.0.0.1",
    "::ffff:127.0.0.1",
    "::10.0.0.1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b::7f00:1",
    "64:ff9b:1::a00:1",
    "2002:a00:1::1",
    "2001:0:a00:1::f5ff:fffe",
    "2001:db8::1",
]

# What servers in the world answer begins with this, so that an attempt that got one shows it.
REACHED = "reached-the-far-end"
# Services of the machine: on its loopback, and on all of its addresses.
LOOPBACK_PORT = 8000
