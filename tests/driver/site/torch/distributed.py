def is_available() -> bool:
    return True


def is_nccl_available() -> bool:
    return True


def is_gloo_available() -> bool:
    return True
