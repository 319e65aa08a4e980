"""NamedTuples of arrays as arguments of compiled loops: Python holds the arrays during the call.

Numba counts references to every array of a tuple wherever the tuple is passed on or taken apart. For a model of
dozens of arrays this is most of the code that it writes, and then removes again. Here nothing is counted: a compiled
loop must not return an array of such a tuple, nor a part of one.
"""

from typing import Any, TypeVar

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import NativeValue, models, register_model, typeof_impl, unbox

Tuple = TypeVar("Tuple", bound=type)


class Given(types.NamedTuple):  # type: ignore[misc, name-defined]
    """The type of a NamedTuple that Python gives to a compiled loop."""


@register_model(Given)
class GivenModel(models.TupleModel):  # type: ignore[misc]
    """The same memory as of other tuples, without references to count."""

    def inner_models(self) -> list[Any]:
        """Return nothing that has references."""
        return []

    def traverse(self, builder: Any) -> list[Any]:
        """Return nothing that has references."""
        return []


def given(kind: Tuple) -> Tuple:
    """Let compiled loops take this kind of NamedTuple without counting references."""

    @typeof_impl.register(kind)  # type: ignore[untyped-decorator]
    def type_of(value: Any, context: Any) -> Given:
        return Given([typeof_impl(part, context) for part in value], kind)

    return kind


@unbox(Given)  # type: ignore[untyped-decorator]
def read(kind: Given, given: Any, c: Any) -> NativeValue:
    """Read the tuple and its parts, which are tuples of the same form, arrays and numbers."""
    failed, parts = cgutils.false_bit, []
    for i, kind_of_part in enumerate(kind):
        part = c.pyapi.tuple_getitem(given, i)
        if isinstance(kind_of_part, types.Array):
            array = c.context.make_array(kind_of_part)(c.context, c.builder)
            place = c.builder.bitcast(array._getpointer(), c.pyapi.voidptr)
            form = ir.FunctionType(ir.IntType(32), [c.pyapi.pyobj, c.pyapi.voidptr])
            adapt = cgutils.get_or_insert_function(c.builder.module, form, "numba_adapt_ndarray")
            error = cgutils.is_not_null(c.builder, c.builder.call(adapt, [part, place]))
            parts.append(c.builder.load(array._getpointer()))
        else:
            native = c.unbox(kind_of_part, part)
            error = native.is_error
            parts.append(native.value)
        failed = c.builder.or_(failed, error)
    return NativeValue(c.context.make_tuple(c.builder, kind, parts), is_error=failed)
