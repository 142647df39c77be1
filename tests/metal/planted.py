"""Kernels with a fault planted in their source, to see that the emulator and the comparisons notice."""

from splashlite.kernels import backend


def plant(monkeypatch, name: str, old: str, new: str) -> None:
    """Replace `old` by `new` once in the source of kernel `name`, for the rest of the test."""
    kernel = backend.registry[name]
    header, body = backend.source(kernel.file, name)
    assert old in header or old in body, f"{name} no longer contains {old!r}"
    if old in body:
        body = body.replace(old, new, 1)
    else:
        header = header.replace(old, new, 1)
    monkeypatch.setitem(kernel.__dict__, "launch", kernel.built(header, body))
