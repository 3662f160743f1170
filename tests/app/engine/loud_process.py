"""For a limited process: answers with as many bytes as it is asked for."""


def answer(request: bytes) -> bytes:
    return b"x" * int(request)
