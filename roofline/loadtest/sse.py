"""Server-sent events, as bytes arrive: https://html.spec.whatwg.org/multipage/server-sent-events.html"""

from __future__ import annotations

from roofline.loadtest.failures import BAD_EVENT, Failure

MOST_BYTES = 64 * 2**20


class EventParser:
    """Collects bytes and gives out the data of each event once it is complete.

    Any line ending, any split into packets (in the middle of a character too), several events in a packet, comments, other
    fields. An event without data, as a comment that keeps the connection alive, gives nothing.
    """

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that `data` completes. Raises Failure for an event of more than MOST_BYTES."""
        if self._rest:
            data = self._rest + data
        if b"\r" in data:
            held = b"\r" if data.endswith(b"\r") else b""  # its newline may come with the next packet
            data = data[: len(data) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n") + held
        end = data.rfind(b"\n\n")
        if end < 0:
            self._rest = data
            if len(data) > MOST_BYTES:
                raise Failure(BAD_EVENT, f"more than {MOST_BYTES >> 20} MiB without the end of an event")
            return []
        self._rest = data[end + 2 :]
        return [payload for event in data[:end].split(b"\n\n") if (payload := _data_of(event))]

    def finish(self) -> list[bytes]:
        """At the end of the body: the data of an event whose blank line never came."""
        return self.feed(b"\n\n") if self._rest else []


def _data_of(event: bytes) -> bytes:
    """The data lines of an event, joined by newlines."""
    if event.startswith(b"data:") and b"\n" not in event:
        return event[5:].strip()
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines).strip()
