"""What ``torch.cuda`` says about the build; there is no device behind it."""

from types import SimpleNamespace

nccl = SimpleNamespace(version=lambda: (2, 26, 2))


def is_available() -> bool:
    return True


def get_arch_list() -> list[str]:
    return ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]
