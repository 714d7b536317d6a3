"""once and claim: which message it is, and that it has its effect once."""

import inspect
import logging
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import dramatiq
import pytest

import outbox
from outbox import current_outbox
from outbox.core import Outbox
from outbox.events.envelope import as_dict
from outbox.inbox.once_decorator import SKIPPED
from tests.conftest import Configure, Note
from tests.inbox.effects import inbox_rows, note_taker, notes
from tests.support.table import claimed, emit_one

ID = UUID("0199c2f0-7a1e-7cc3-8d3a-5f0e6b1f2a3b")


def actor_message(*args: Any) -> dramatiq.Message[Any]:
    return dramatiq.Message(queue_name="default", actor_name="index", args=args, kwargs={}, options={})


class TestWhichMessageItIs:
    def test_an_event_its_row_and_its_envelope_are_one_message(self, box: Outbox) -> None:
        row = emit_one()
        (event,) = claimed(box).events
        take_note = note_taker()
        assert take_note(event) == "noted"
        assert [take_note(same) for same in (event, row, as_dict(event))] == [SKIPPED] * 3
        assert (notes(), inbox_rows()) == (["reader"], [(str(event.id), "reader")])

    def test_anything_with_an_id_is_a_message(self, box: Outbox) -> None:
        take_note = note_taker()
        assert [take_note(SimpleNamespace(id=7)) for _ in range(2)] == ["noted", SKIPPED]
        assert inbox_rows() == [("7", "reader")]

    def test_a_dramatiq_message_is_known_by_its_own_id(self, box: Outbox) -> None:
        message = actor_message()
        take_note = note_taker()
        assert [take_note(message) for _ in range(2)] == ["noted", SKIPPED]
        assert take_note(actor_message()) == "noted"
        assert (message.message_id, "reader") in inbox_rows()

    def test_it_may_be_given_by_its_name(self, box: Outbox) -> None:
        take_note = note_taker()
        assert [take_note(message={"id": 1}), take_note({"id": 1})] == ["noted", SKIPPED]

    def test_key_names_an_argument(self, box: Outbox) -> None:
        @outbox.inbox.once("starter", key="command_id")
        def start(what: str, command_id: str = "none") -> str:
            Note.create(text=what)
            return what

        assert start("a", "c-1") == "a"
        assert start("b", command_id="c-1") is SKIPPED
        assert start(what="c", command_id="c-2") == "c"
        assert start("d") == "d"
        assert inbox_rows() == [("c-1", "starter"), ("c-2", "starter"), ("none", "starter")]

    @pytest.mark.parametrize(
        "message", [{"order": "o-1"}, SimpleNamespace(order="o-1")], ids=["a dict's", "an object's"]
    )
    def test_key_names_a_field_of_the_first_argument(self, box: Outbox, message: object) -> None:
        take_note = note_taker(key="order")
        assert [take_note(message), take_note(message=message)] == ["noted", SKIPPED]
        assert inbox_rows() == [("o-1", "reader")]

    def test_key_is_a_function_of_all_arguments(self, box: Outbox) -> None:
        @outbox.inbox.once("mover", key=lambda source, *, to: f"{source}>{to}")
        def move(source: str, *, to: str) -> str:
            return "moved"

        assert [move("a", to="b"), move("a", to="c"), move("a", to="b")] == ["moved", "moved", SKIPPED]

    @pytest.mark.parametrize(("message", "key"), [({"order": 1}, None), (object(), None), ({"id": 1}, "order")])
    def test_what_has_no_id_is_refused(self, box: Outbox, message: object, key: str | None) -> None:
        with pytest.raises(outbox.InvalidMessage, match=r"(dict|object) has no ('order'|id)"):
            note_taker(key=key)(message)
        assert (notes(), inbox_rows()) == ([], [])

    def test_a_call_that_the_function_could_not_take_is_the_callers_mistake(self, box: Outbox) -> None:
        with pytest.raises(TypeError, match="message"):
            note_taker()()


class TestIds:
    def test_a_uuid_and_its_text_are_one_message(self, box: Outbox) -> None:
        take_note = note_taker()
        assert [take_note({"id": id}) for id in (ID, str(ID))] == ["noted", SKIPPED]

    def test_a_number_and_its_text_are_one_message(self, box: Outbox) -> None:
        take_note = note_taker()
        assert [take_note({"id": id}) for id in (0, "0", -1, 2**80)] == ["noted", SKIPPED, "noted", "noted"]

    @pytest.mark.parametrize("id", ["x" * 255, "ř" * 255, "☃", " ", "a'b\"c%s?\\", "\U0001f40d"])
    def test_text_of_up_to_255_characters_is_kept_as_it_is(self, box: Outbox, id: str) -> None:
        for handler_name in ("reader", id):
            with outbox.inbox.claim(id, handler_name) as first:
                assert first
            with outbox.inbox.claim(id, handler_name) as first:
                assert not first
        assert inbox_rows() == sorted([(id, "reader"), (id, id)])

    @pytest.mark.parametrize("id", ["x" * 256, "", "a\x00b", "\ud800", None, True, False, 1.5, b"id", ["id"]], ids=repr)
    def test_what_can_not_be_kept_is_refused_before_any_sql(self, box: Outbox, id: Any) -> None:
        with box.database.atomic():
            with pytest.raises(outbox.InvalidMessage, match="message_id"), outbox.inbox.claim(id, "reader"):
                pass
            Note.create(text="goes on")
        assert (notes(), inbox_rows()) == (["goes on"], [])

    @pytest.mark.parametrize("name", ["x" * 256, "", "a\x00b", None, True])
    def test_a_handlers_name_is_checked_where_it_is_given(self, name: Any) -> None:
        with pytest.raises(outbox.InvalidMessage, match="handler_name"):
            outbox.inbox.once(name)
        with pytest.raises(outbox.InvalidMessage, match="handler_name"):
            note_taker(name)

    def test_capital_letters_make_another_message(self, box: Outbox) -> None:
        take_note = note_taker()
        assert [take_note({"id": id}) for id in ("a", "A")] == ["noted", "noted"]


class TestHandlersAndMessages:
    def test_each_handler_processes_a_message_once(self, box: Outbox) -> None:
        first, second = note_taker("first"), note_taker("second")
        assert [first({"id": 1}), second({"id": 1}), first({"id": 1}), second({"id": 1})] == [
            "noted",
            "noted",
            SKIPPED,
            SKIPPED,
        ]
        assert inbox_rows() == [("1", "first"), ("1", "second")]

    def test_two_functions_of_one_name_are_one_handler(self, box: Outbox) -> None:
        assert [note_taker("same")({"id": 1}), note_taker("same")({"id": 1})] == ["noted", SKIPPED]

    def test_a_handler_may_hand_the_message_on_to_another(self, box: Outbox) -> None:
        inner = note_taker("inner")

        @outbox.inbox.once("outer")
        def outer(message: dict[str, int]) -> Any:
            Note.create(text="outer")
            return inner(message), inner(message), outer(message)

        assert outer({"id": 1}) == ("noted", SKIPPED, SKIPPED)
        assert inner({"id": 1}) is SKIPPED
        assert notes() == ["inner", "outer"]


class TestSkipped:
    def test_it_is_false_and_its_repr_names_it(self) -> None:
        assert not SKIPPED
        assert repr(SKIPPED) == "outbox.inbox.SKIPPED"
        assert "was processed before" in str(inspect.getdoc(type(SKIPPED)))

    def test_a_handler_that_returns_none_differs_from_one_that_was_skipped(self, box: Outbox) -> None:
        nothing = outbox.inbox.once("reader")(lambda _: None)
        assert [nothing({"id": 1}), nothing({"id": 1})] == [None, SKIPPED]

    def test_skips_are_counted_and_logged_at_debug(self, box: Outbox, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG, logger="outbox")
        take_note = note_taker()
        for _ in range(3):
            take_note({"id": "m-1"})
        assert box.counters["skipped"] == 2
        assert caplog.messages == ["Skipped: reader has processed message m-1 before."] * 2


class TestClaim:
    def test_it_yields_whether_it_is_the_first_time(self, box: Outbox) -> None:
        seen = []
        for _ in range(3):
            with outbox.inbox.claim("c-1", "starter") as first:
                seen.append(first)
                if first:
                    Note.create(text="started")
        assert seen == [True, False, False]
        assert (notes(), inbox_rows()) == (["started"], [("c-1", "starter")])

    def test_it_finds_what_once_has_processed(self, box: Outbox) -> None:
        note_taker("reader")({"id": 1})
        with outbox.inbox.claim(1, "reader") as first:
            assert not first

    def test_it_leaves_no_connection_open_that_it_has_opened(self, box: Outbox) -> None:
        assert box.database.is_closed()
        with outbox.inbox.claim(1, "reader"):
            assert not box.database.is_closed()
        assert box.database.is_closed()
        with box.database.connection_context():
            note_taker()({"id": 2})
            assert not box.database.is_closed()


class TestDecorating:
    def test_the_function_keeps_its_name_its_docstring_and_its_signature(self) -> None:
        def credit(event: outbox.Event, cents: int = 0) -> int:
            """Add it up."""
            return cents

        decorated = outbox.inbox.once("ledger")(credit)
        assert (decorated.__name__, decorated.__doc__, decorated.__module__) == ("credit", "Add it up.", __name__)
        assert inspect.signature(decorated) == inspect.signature(credit)
        assert inspect.unwrap(decorated) is credit

    def test_what_would_do_its_work_after_the_commit_is_refused(self) -> None:
        async def coroutine(message: object) -> None: ...

        def generator(message: object) -> Iterator[None]:
            yield

        async def both(message: object) -> AsyncIterator[None]:
            yield

        kinds: list[tuple[Any, str]] = [
            (coroutine, "a coroutine function"),
            (generator, "a generator"),
            (both, "an asynchronous generator"),
        ]
        for function, kind in kinds:
            with pytest.raises(outbox.RegistrationError, match=f"'ledger' is {kind}, .* plain function"):
                outbox.inbox.once("ledger")(function)

    def test_it_may_be_decorated_before_anything_is_configured(self, configure: Configure) -> None:
        assert not current_outbox.is_configured()
        take_note = note_taker()
        configure()
        assert take_note({"id": 1}) == "noted"

    def test_a_second_outbox_has_an_inbox_of_its_own(self, box: Outbox) -> None:
        mine = box.inbox.once("reader")(lambda _: "mine")
        assert [mine({"id": 1}), note_taker()({"id": 1})] == ["mine", SKIPPED]
