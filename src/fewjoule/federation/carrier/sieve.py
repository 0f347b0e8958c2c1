"""A listening socket that does not hear some networks: the kernel drops their SYN before anything is accepted.

The program is classic BPF, which every user may attach to a socket of their own (Linux). Only packets that open a
connection are dropped, so connections that exist are not touched. A caller's system sends the packet again by itself.
"""

import ctypes
import ipaddress
import socket
import struct
import sys
from collections.abc import Iterable

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MOST_NETWORKS = 256
_SO_ATTACH_FILTER = 26
_LOAD_WORD, _LOAD_BYTE, _AND, _SHIFT, _IF_EQUAL, _RETURN = 0x20, 0x30, 0x54, 0x74, 0x15, 0x06
_IP_HEADER = 0xFFF00000  # offsets from here on count from the IP header, others from the TCP header
_FLAGS_AT, _SYN, _SYN_AND_ACK = 13, 0x02, 0x12
_SOURCE_AT = {4: 12, 6: 8}
_HEAR, _DROP = 0xFFFFFFFF, 0

Instruction = tuple[int, int, int, int]  # operation, how many to skip if true, if false, operand


def program(networks: Iterable[Network]) -> list[Instruction]:
    """Drops a SYN from one of these IPv4 addresses or IPv6 networks of 64 bits; lets everything else through."""
    lines: list[Instruction] = [
        (_LOAD_BYTE, 0, 0, _FLAGS_AT),
        (_AND, 0, 0, _SYN_AND_ACK),
        (_IF_EQUAL, 1, 0, _SYN),
        (_RETURN, 0, 0, _HEAR),
    ]
    for network in networks:
        words = struct.unpack(">1I" if network.version == 4 else ">2I", network.network_address.packed[:8])
        lines += [
            (_LOAD_BYTE, 0, 0, _IP_HEADER),
            (_SHIFT, 0, 0, 4),
            (_IF_EQUAL, 0, 2 * len(words) + 1, network.version),
        ]
        for i, word in enumerate(words):
            lines.append((_LOAD_WORD, 0, 0, _IP_HEADER + _SOURCE_AT[network.version] + 4 * i))
            lines.append((_IF_EQUAL, 0, 2 * (len(words) - 1 - i) + 1, word))
        lines.append((_RETURN, 0, 0, _DROP))
    return [*lines, (_RETURN, 0, 0, _HEAR)]


def attach(listening: socket.socket, networks: Iterable[Network]) -> None:
    """Have the socket hear everybody but these (as many as `MOST_NETWORKS`); `OSError` where the system cannot."""
    chosen = list(networks)[:MOST_NETWORKS]
    if sys.platform != "linux":
        raise OSError("only Linux has socket filters")
    lines = program(chosen)
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in lines))
    about = struct.pack("@HP", len(lines), ctypes.addressof(code))
    listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, about)
