"""Arrays of numbers that NumPy and DLPack's libraries read in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class Array:
    """A read-only array of f32. `numpy.asarray(array)` and `torch.from_dlpack(array)` share its memory, which lives as
    long as either does, also after the model has closed."""

    __slots__ = ("__weakref__", "_inner")

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the dimensions."""
        return tuple(self._inner.shape)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self._inner.shape)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        found: dict[str, Any] = self._inner.__array_interface__
        return found

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, index: int) -> Any:
        size = len(self)
        if not -size <= index < size:
            raise IndexError(f"index {index} of {size}")
        row = self._inner.row(index % size)
        return row if self.ndim == 2 else row[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def tolist(self) -> list[Any]:
        """The numbers as lists."""
        return [self[index] for index in range(len(self))]

    def __dlpack_device__(self) -> tuple[int, int]:
        """The processor's memory."""
        return (1, 0)

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None
    ) -> Any:
        """A capsule that owns the memory."""
        from fathom._dlpack import capsule

        return capsule(self, versioned=max_version is not None and tuple(max_version) >= (1, 0))

    def __repr__(self) -> str:
        return f"<fathom.Array {' x '.join(map(str, self.shape))} f32>"
