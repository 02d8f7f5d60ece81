"""The Python module on the tests' tiny model: python test_tokenmill.py TINY.gguf [VALUES [ENCODER]].

VALUES of each of ten types are asked for; ENCODER is a model that embeds.
"""

import dataclasses
import enum
import gc
import os
import signal
import sys
import threading
import time
from typing import Annotated, Literal, Optional

from pydantic import BaseModel, Field

import tokenmill

PATH, VALUES = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
model = tokenmill.Model(PATH, context=4096, threads=2, parallel=4, memory_bytes=1 << 30)
Short = Annotated[str, Field(max_length=10)]


class Person(BaseModel):
    name: Short
    age: int = Field(ge=0, le=150)


class Mood(enum.Enum):
    good = "good"
    bad = "bad"


class Circle(BaseModel):
    kind: Literal["circle"]
    radius: float


class Square(BaseModel):
    kind: Literal["square"]
    side: int


class Team(BaseModel):
    lead: Person
    members: list[Person] = Field(max_length=2)
    mood: Optional[Mood]


@dataclasses.dataclass
class Point:
    x: int
    y: int


TYPES = [Person, Mood, Circle | Square, Team, Point, bool, Annotated[list[int], Field(max_length=4)], Literal["a", "b"],
         tuple[int, bool], Optional[float]]


def chat(seed, **more):
    return model.chat(**{"seed": seed, "max_tokens": 3000, "temperature": 1.0, "top_p": 1.0, "min_p": 0.0, **more})


def typed():
    for type_ in TYPES:
        for seed in range(VALUES):
            chat(seed).ask_for(type_, "One, please.")
    parts = list(chat(5).stream_for(Person, "Who?"))
    # (How many come before the value is a matter of who is faster: text that was not read joins.)
    assert isinstance(parts[-1], Person) and len(parts) > 1 and all(isinstance(part, dict) for part in parts[:-1]), parts
    print(len(TYPES) * VALUES, "values of", len(TYPES), "types")


def tools():
    heard = []
    talk = chat(3, max_tokens=200)

    @talk.tool
    def add(a: Annotated[int, Field(ge=-99, le=99)], b: bool = False) -> int:
        """Adds."""
        heard.append((a, b))
        return a + 1

    talk.must_call()
    pieces = list(talk.stream("What is one more?"))
    kinds = [piece.kind for piece in pieces]
    assert heard and kinds.count("call") == kinds.count("found") == len(heard), kinds
    assert any(piece.content == str(heard[0][0] + 1) for piece in pieces if piece.kind == "found")


def order():
    other = tokenmill.Model(PATH, context=2048, memory_bytes=1 << 30)
    talk = other.chat(max_tokens=1000)
    answer = talk.stream("Go on.")
    next(answer)
    try:
        talk.ask("And?")
        raise AssertionError("two answers at once")
    except tokenmill.TokenmillError as error:
        assert "being made" in str(error), error
    del other
    gc.collect()
    next(answer)
    del talk
    gc.collect()
    answer.close()
    assert list(answer) == []
    del answer
    gc.collect()


def threads():
    found = {}
    ask = lambda seed: "".join(model.complete("abc", seed=seed, max_tokens=40))
    alone = {seed: ask(seed) for seed in range(4)}
    all_ = [threading.Thread(target=lambda s=seed: found.__setitem__(s, ask(s))) for seed in range(4)]
    [thread.start() for thread in all_]
    [thread.join() for thread in all_]
    assert found == alone, (found, alone)


def dropped():
    # (By itself it would end after 105 tokens, on a busy machine before it is looked at.)
    answer = model.chat(seed=1, min_tokens=3000, max_tokens=3000).stream("Go on for ever.")
    next(answer)
    assert model.stats()["running"] == 1, model.stats()
    before = model.stats()["dropped"]
    del answer
    gc.collect()
    while model.stats()["running"]:  # (ends, or the test never does)
        time.sleep(0.001)
    done = model.stats()
    assert done["dropped"] == before + 1, done
    time.sleep(0.2)
    assert model.stats()["steps"] == done["steps"], "nothing is computed any more"
    whole = model.complete("abc", seed=1, max_tokens=7)
    whole.finish()
    generated, prompt = whole.tokens
    assert 1 <= generated <= 7 and prompt >= 1, whole.tokens


def free():
    """Other threads of Python go on while one waits for an answer."""
    done, counted = threading.Event(), 0
    thread = threading.Thread(target=lambda: (model.complete("abc", seed=3, max_tokens=1500).finish(), done.set()))
    thread.start()
    while not done.is_set():
        counted += 1
        time.sleep(0)
    thread.join()
    assert counted > 100, counted


def child(work):
    """The status of a process made by fork that does this; one that hangs is killed."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(10)
        status = 1
        try:
            status = work() or 0
        except tokenmill.TokenmillError as error:
            status = 42 if "fork" in str(error) else 43
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def forked():
    answer, talk = model.complete("abc", seed=1, max_tokens=1500), chat(1)
    asked = chat(2).stream("Go on.")
    next(answer)
    for work in [lambda: model.complete("abc"), lambda: next(answer), lambda: next(asked), lambda: talk.ask("a"),
                 lambda: answer.finish()]:
        assert child(work) == 42

    def drops():
        nonlocal answer, talk, asked
        global model
        del answer, talk, asked, model
        gc.collect()

    def opens():
        other = tokenmill.Model(PATH, context=512, memory_bytes=1 << 28)
        assert other.complete("abc", seed=1, max_tokens=3).finish() == text

    text = model.complete("abc", seed=1, max_tokens=3).finish()
    assert child(drops) == 0 and child(opens) == 0
    assert child(lambda: sys.exit(0)) == 1  # (only to see that the test tells)
    assert answer.finish() and asked.finish()


def embeds():
    if len(sys.argv) < 4:
        print("no encoder given")
        return
    import numpy

    encoder = tokenmill.Model(sys.argv[3])
    near, same, far = encoder.embed(["a cat sits", "a cat is sitting", "interest rates rose"])
    assert near.dtype == numpy.float32 and near.ndim == 1
    assert near @ same > near @ far
    assert encoder.embed(iter([])).shape == (0, len(near))


def errors():
    for wrong, told in [
        (lambda: tokenmill.Model("/nowhere.gguf"), "/nowhere.gguf"),
        (lambda: tokenmill.Model(PATH, ctx=5), "unknown field `ctx`"),
        (lambda: model.chat(temp=1), "unknown field `temp`"),
        (lambda: model.embed(["a"]), "gives no embeddings"),
        (lambda: model.chat().stream("a", {"not": {}}), "not"),
    ]:
        try:
            wrong()
            raise AssertionError(told)
        except (tokenmill.TokenmillError, ValueError) as error:
            assert told in str(error), error


for test in [typed, tools, order, dropped, threads, free, forked, embeds, errors]:
    test()
    print(test.__name__, "ok", flush=True)
