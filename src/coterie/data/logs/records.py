"""Records: what the log is made of. Applied in order, they give the service's whole state.

Records name users by number. A table beside the log has the name of each number, so forgetting a user is one
deletion, and no record is lost. Records are MessagePack with named fields. A field with a default may be added;
any other change is a new VERSION.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Annotated, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec import Meta, Struct

from coterie.arrays import Floats, JsonObject
from coterie.data.logs.rules import Config
from coterie.errors import FileError, ParameterError
from coterie.models.encoded import Encoded, name_of
from coterie.models.encoded import encode as hashed_actions
from coterie.models.features import FeatureObjects

T = TypeVar("T")
Features = FeatureObjects
VERSION = 3
LEVEL = 1  # of zlib
PLACE = 0xFFFFFFFF  # the part of a position that is in a checksum
ALONE = 24  # bytes of an id that is hashed alone
SLOT = "\x1f"  # between an event's id and a slot's number: no client can choose it

ArmName = Literal["", "champion", "holdback", "challenger"]  # "" outside of a trial
# What a policy reads: ids, vectors of hashed features, or both and the context in one model.
Kind = Literal["items", "vectors", "model"]
Moment = Annotated[int, Meta(ge=0)]  # milliseconds since 1970; backwards only where a Tick has a jump


class Configure(Struct, frozen=True, tag="configure", omit_defaults=True):
    """The service decides and learns by these rules from here on."""

    at: Moment
    config: Config
    contract: JsonObject = {}  # what Personalizer's configuration has and `config` has not
    salt: Annotated[str, Meta(pattern="^[0-9a-f-]{0,64}$")] = ""  # of the trial from here on, if there is one
    # What draws are made with. Whoever knows it can choose an action by the choice of an event's id, so it is in the
    # log only; `public` leaves it out of exports.
    secret: Annotated[bytes, Meta(max_length=64)] = b""


class ShownAction(Struct, frozen=True, omit_defaults=True):
    """An action that was shown: all that any policy needs to learn its payoff."""

    id: str
    hashed: bytes | None = None  # with its features and its context, by hashes; None if there are none
    featured: bool = False  # whether it, or another action in its list, had features

    @classmethod
    def of(cls, name: str, encoded: Encoded, k: int = 0, featured: bool = False) -> "ShownAction":
        """Return one of some candidates."""
        hashed = encoded.to_bytes(k)
        return cls(name, hashed if len(hashed) > ALONE else None, featured)

    def encoded(self) -> Encoded:
        """Return it as a candidate."""
        if self.hashed is None:
            return _encoded_alone(self.id)
        return Encoded.from_bytes(self.hashed)


@lru_cache(maxsize=10_000)
def _encoded_alone(name: str) -> Encoded:
    """Return an action without features as a candidate; the same few are shown again and again."""
    return hashed_actions({}, [(name_of(name), {})])


class Rank(Struct, frozen=True, tag="rank", omit_defaults=True):
    """A decision. `order`, `excluded`, `best` and `baseline` are positions in `actions`."""

    at: Moment
    event: str
    user: int
    actions: tuple[str, ...]
    order: tuple[int, ...]  # as answered: the chosen first, then by score, the excluded last
    best: int  # what the policy would choose
    baseline: int  # what the application would have shown
    chances: bytes  # float64: how likely each action was that is not excluded, as listed
    digest: bytes  # of the request, to tell a retry from another request with the same event id
    excluded: tuple[int, ...] = ()
    deferred: bool = False
    reasons: bytes | None = None  # (rows, actions) float32: see the module `reasons`
    features: bytes | None = None  # as sent, JSON: {"context": […], "actions": […]}
    slot: str | None = None  # which of several slots it is for
    shown: str = ""  # which rules held: "", "baseline" (apprentice) or "explored"
    hashed: bytes | None = None  # as in ShownAction
    featured: bool = False
    parts: bytes | None = None  # the largest parts of the choice's estimate: see reasons.PART
    arm: ArmName = ""  # of a trial: "champion", "holdback" or "challenger"
    capped: tuple[int, ...] = ()  # reached a frequency cap; the choice is one of them only if all were
    alone: bool = False  # whether the request names no user; then it counts as a user of its own
    costs: bytes | None = None  # float64: what each action costs, as listed
    price: float = 0.0  # of cost, in payoffs, that the choice was made with
    unaffordable: tuple[int, ...] = ()  # cost more than what is left of a budget
    state: int = -1  # the position whose state it was decided from

    @property
    def choice(self) -> int:
        """What was shown."""
        return self.order[0]

    @property
    def action(self) -> ShownAction:
        """What was shown, as policies learn it."""
        return ShownAction(self.actions[self.choice], self.hashed, self.featured)

    @property
    def open_to(self) -> Sequence[int]:
        """The positions of the actions that it could have been."""
        every = range(len(self.actions))
        return [k for k in every if k not in self.excluded] if self.excluded else every

    @property
    def likely(self) -> Floats:
        """How likely each of these was."""
        return np.frombuffer(self.chances)

    @property
    def probability(self) -> float:
        """How likely the choice was."""
        return float(self.likely[self.open_to.index(self.choice)])

    @property
    def each_cost(self) -> Floats | None:
        """What each action costs; None if the request does not say."""
        return None if self.costs is None else np.frombuffer(self.costs)

    @property
    def cost(self) -> float:
        """What the choice costs, as far as it is known."""
        return 0.0 if self.each_cost is None else float(self.each_cost[self.choice])

    @property
    def sent(self) -> tuple[Features, Sequence[Features | None]]:
        """The features as sent: the context's, and each action's; none once they are scrubbed."""
        if self.features is None:
            return (), [None] * len(self.actions)
        sent = msgspec.json.decode(self.features)
        return sent["context"], sent["actions"]


class Reward(Struct, frozen=True, tag="reward", omit_defaults=True):
    """A reward, and what seemed to become of it. The order of the log decides: see `Bandit.apply` and `settled`."""

    at: Moment
    event: str
    value: float
    outcome: str
    decision: int  # where the decision is in the log, and whose it is
    user: int
    name: str | None = None  # the client's name for this reward, to tell a retry from a second reward
    cost: float | None = None  # what the decision really cost
    parts: dict[str, float] = {}  # by name


class Activate(Struct, frozen=True, tag="activate", omit_defaults=True):
    """A deferred decision was shown after all."""

    at: Moment
    event: str
    decision: int  # as in Reward
    user: int


class Forget(Struct, frozen=True, tag="forget", omit_defaults=True):
    """A user is dropped from the model; earlier records of the number are scrubbed."""

    at: Moment
    user: int


class Observe(Struct, frozen=True, tag="observe", omit_defaults=True):
    """A payoff that was not earned here, to warm-start: learned without a decision of this service."""

    at: Moment
    user: int
    value: float
    action: ShownAction


class Befriend(Struct, frozen=True, tag="befriend", omit_defaults=True):
    """A user has these friends from here on, and no others; each edge has a weight."""

    at: Moment
    user: int
    friends: tuple[int, ...]
    weights: tuple[float, ...]


class Tick(Struct, frozen=True, tag="tick", omit_defaults=True):
    """Time passed, and some waits ended."""

    at: Moment
    jump: int = 0  # milliseconds by which the time of day jumped; the ends of waits move with it
    lost: bool = False  # whether it is in the place of a record that was damaged: see log/damage.py


class Reset(Struct, frozen=True, tag="reset", omit_defaults=True):
    """The model was emptied; decisions and their events stay."""

    at: Moment


class Import(Struct, frozen=True, tag="import", omit_defaults=True):
    """The model was replaced by one from a file."""

    at: Moment
    users: tuple[int, ...]
    models: dict[Kind, tuple[int, bytes]]  # payoffs learned, and safetensors


Record = Configure | Rank | Reward | Activate | Forget | Observe | Befriend | Tick | Reset | Import

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)
_all_decoder = msgspec.msgpack.Decoder(list[Record])
_parts_decoder = msgspec.msgpack.Decoder(list[msgspec.Raw])


def encode(record: Record) -> bytes:
    """Return a record as bytes; raises ParameterError if the format cannot hold it."""
    try:
        return _encoder.encode(record)
    except (OverflowError, TypeError, ValueError) as error:
        raise ParameterError(
            f"this cannot be written to the log: {error}; integers must be between -2**63 and 2**64 - 1"
        ) from error


def decode(data: bytes | msgspec.Raw) -> Record:
    """Return the record that `encode` wrote."""
    return _decoder.decode(data)  # type: ignore[no-any-return]


def public(record: Record) -> Record:
    """Return a record as it may leave the service: without what draws are made with."""
    return msgspec.structs.replace(record, secret=b"", salt="") if isinstance(record, Configure) else record


class Drained(NamedTuple):
    """New records, encoded, and what they change in the table of users."""

    records: list[bytes]
    named: dict[int, str]  # new users
    gone: list[int]  # users whose names go
    scrub: list[int]  # users whose earlier records are to be scrubbed


class Batch(Struct, frozen=True):
    """Records that became durable together: one row of the store."""

    first: int  # the position of the first record in the log
    count: int
    body: bytes  # the records, as a MessagePack array, compressed by zlib
    checksum: int  # of all the rest
    version: int = VERSION

    @property
    def where(self) -> str:
        """The batch in messages."""
        return f"log records {self.first} to {self.first + self.count - 1}"

    def at(self, first: int) -> "Batch":
        """Return the batch at another place of the log."""
        moved = self.checksum ^ ((self.first ^ first) & PLACE)
        return msgspec.structs.replace(self, first=first, checksum=moved)

    def is_sound(self) -> bool:
        """Return whether the checksum fits."""
        return checksum(self) == self.checksum

    def records(self) -> list[Record]:
        """Check and decode; an error says what is wrong and where."""
        return self._decoded(_all_decoder)

    def parts(self) -> list[msgspec.Raw]:
        """Check, and return the records without decoding them."""
        return self._decoded(_parts_decoder)

    def _decoded(self, decoder: "msgspec.msgpack.Decoder[list[T]]") -> list[T]:
        try:
            found = decoder.decode(self.content())
            if len(found) != self.count:
                raise ValueError(f"{len(found)} records, expected {self.count}")
        except (msgspec.MsgspecError, ValueError) as error:
            raise FileError(f"{self.where} cannot be read: {error}") from error
        return found

    def content(self) -> bytes:
        """Check, and return the MessagePack array."""
        if self.version != VERSION:
            raise FileError(
                f"{self.where} have format version {self.version}, this coterie reads version {VERSION}; read them "
                "with the coterie that wrote them"
            )
        if not self.is_sound():
            raise FileError(
                f"{self.where} are damaged: their checksum does not fit; restore a backup of the store, or keep "
                f"what comes before with `coterie store cut --at {self.first}`"
            )
        try:
            return zlib.decompress(self.body)
        except zlib.error as error:
            raise FileError(f"{self.where} cannot be read: {error}") from error


def pack(first: int, encoded: Sequence[bytes]) -> Batch:
    """Return encoded records as a batch that starts at position `first`."""
    return pack_content(first, len(encoded), join(encoded))


def join(encoded: Sequence[bytes]) -> bytes:
    """Return encoded records as a MessagePack array, of 32-bit length."""
    return b"".join((b"\xdd", len(encoded).to_bytes(4, "big"), *encoded))


def pack_content(first: int, count: int, content: bytes) -> Batch:
    """Return a batch of joined records."""
    made = Batch(first, count, zlib.compress(content, LEVEL), 0)
    return msgspec.structs.replace(made, checksum=checksum(made))


def checksum(batch: Batch) -> int:
    """Return the CRC-32 of a batch's content, and its place by exclusive or: so a database can move it."""
    return zlib.crc32(batch.body, zlib.crc32(b"%d %d " % (batch.version, batch.count))) ^ (
        batch.first & PLACE
    )


class _Named(Struct):
    """What the index of the log needs of a record."""

    type: str
    event: str = ""
    user: int = -1


_named_decoder = msgspec.msgpack.Decoder(list[_Named])


class Index(NamedTuple):
    """What the store finds decisions and users by, without decoding the log."""

    events: dict[bytes, int]  # a hash of each decided event's id, and the position of its decision
    users: bytes  # the numbers of users in these records, 8 bytes each


def index_of(first: int, content: bytes) -> Index:
    """Return the index of joined records."""
    decided: dict[bytes, int] = {}
    named: set[int] = set()
    for position, record in enumerate(_named_decoder.decode(content), first):
        if record.type == "rank" and not record.event.startswith("\0"):  # scrubbed
            decided[event_key(record.event)] = position
        named.add(record.user)
    return Index(decided, b"".join(map(user_key, sorted(named - {-1}))))


def request_of(event: str) -> str:
    """Return the event of a request; one for several slots has an event for each of them."""
    return event.partition(SLOT)[0]


def event_key(event: str) -> bytes:
    """Return the hash that stands for an event's id in the index."""
    return blake2b(event.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def user_key(user: int) -> bytes:
    """Return a user's number as the index has it."""
    return user.to_bytes(8, "big")


def flatten(batches: Iterable[Batch]) -> Iterator[tuple[int, Record]]:
    """Yield every record with its position."""
    for batch in batches:
        yield from enumerate(batch.records(), batch.first)
