"""Work for a limited process in a test: answers with as many bytes as it is asked for."""


def answer(request: bytes) -> bytes:
    return b"x" * int(request)
