from __future__ import annotations

from ddoctor.probing import nccl_log

RECENT = """\
n1:17:17 [0] NCCL INFO NCCL version 2.27.3+cuda12.9
n1:17:90 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
n1:17:90 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM
n1:17:91 [0] NCCL INFO AllReduce: 1024 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}
n1:17:91 [0] NCCL INFO AllReduce: 1073741824 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..23}
n1:17:91 [0] NCCL INFO AllReduce: 4096 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}
"""

OLD = """\
n1:17:17 [0] NCCL INFO NCCL version 2.18.5+cuda12.1
n1:17:90 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
n1:17:90 [0] NCCL INFO Channel 00/0 : 3[3] -> 4[0] [send] via NET/IB/0/GDRDMA
n1:17:91 [0] NCCL INFO 1024 Bytes -> Algo 0 proto 0 time 12.500000
n1:17:91 [0] NCCL INFO 33554432 Bytes -> Algo 1 proto 2 time 1520.208008
"""


def test_the_algorithm_of_the_largest_sum_counts() -> None:
    assert nccl_log.read(RECENT) == nccl_log.Chosen("nvls", ("P2P/CUMEM",), "2.27.3")


def test_older_versions_number_their_algorithms() -> None:
    chosen = nccl_log.read(OLD)
    assert chosen.algorithm == "ring"
    assert chosen.transports == ("NET/IB/0/GDRDMA", "SHM/direct/direct")
    assert chosen.version == "2.18.5"


def test_other_collectives_tell_nothing() -> None:
    text = "n1:1:1 [0] NCCL INFO Broadcast: 999999 Bytes -> Algo RING proto SIMPLE channel{…}\n"
    assert nccl_log.read(text).algorithm == ""


def test_a_log_that_says_nothing() -> None:
    assert nccl_log.read("") == nccl_log.Chosen("", (), "")
    assert nccl_log.read("n1 NCCL INFO 1 Bytes -> Algo 99 proto 0 time 1\n").algorithm == ""
