"""Language models inside a Python program.

    import tokenmill
    model = tokenmill.Model("smollm2")
    for piece in model.chat().stream("Why is the sky blue?"):
        print(piece, end="")

A model is what `tokenmill run` takes: a path, a repository of the Hugging Face hub, an alias; what is not here is
fetched. Models, chats and answers may be used from any thread and dropped in any order; while something is
computed the interpreter's lock is free. A model does not survive fork: in the new process every call raises
TokenmillError, and it is to be opened there again (or use multiprocessing's "spawn").
"""

import inspect
import json
import typing

from . import _tokenmill
from ._tokenmill import TokenmillError

__all__ = ["Answer", "Chat", "Model", "Piece", "TokenmillError"]
__version__ = _tokenmill.version()


class Piece(str):
    """A part of an answer: for text the text itself, else an empty string that says more.

    kind is "text", "reasoning", "call" or "found"; content is what was thought, called with, or found; tool names
    the tool.
    """

    def __new__(cls, kind, content, tool):
        self = super().__new__(cls, content if kind == "text" else "")
        self.kind, self.content, self.tool = kind, content, tool
        return self


class Answer:
    """An answer as it comes. Closing it, or dropping it, computes nothing more."""

    def __init__(self, inner):
        self._inner, self._said = inner, []

    def __iter__(self):
        return self

    def __next__(self):
        piece = Piece(*next(self._inner))
        if piece.kind == "found":
            self._said = []
        self._said.append(piece)
        return piece

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self._inner.close()

    @property
    def text(self):
        """What has come since the last call of a tool."""
        return "".join(self._said)

    @property
    def tokens(self):
        """Tokens generated, and tokens of prompts, all rounds together: known when it is whole."""
        return self._inner.tokens()

    def finish(self):
        """The whole text."""
        for _ in self:
            pass
        return self.text


def _adapter(type_):
    try:
        from pydantic import TypeAdapter
    except ImportError as error:
        raise ImportError("typed answers need pydantic: pip install tokenmill[typed]") from error
    return TypeAdapter(type_)


def _tool(function, about, schema):
    """The schema of a function's arguments, and what calls it with a text of JSON."""
    about = about if about is not None else inspect.getdoc(function) or ""
    if schema is None:
        from pydantic import create_model

        hints = typing.get_type_hints(function)
        members = {}
        for name, parameter in inspect.signature(function).parameters.items():
            default = ... if parameter.default is inspect.Parameter.empty else parameter.default
            members[name] = (hints.get(name, str), default)
        arguments = create_model(function.__name__, **members)
        schema = arguments.model_json_schema()

        def read(text):
            value = arguments.model_validate_json(text)
            return {name: getattr(value, name) for name in members}
    else:
        read = json.loads

    def run(text):
        found = function(**read(text))
        return found if isinstance(found, str) else json.dumps(found, default=str)

    return about, schema, run


class Chat:
    """A conversation: each question and its answer become part of it."""

    def __init__(self, inner):
        self._inner = inner

    def system(self, text):
        self._inner.system(text)

    def sampling(self, **said):
        """temperature, top_k, top_p, min_p, seed, max_tokens, stop and so on, for the answers to come."""
        self._inner.sampling(json.dumps(said))

    def thinking(self, tokens):
        """Tokens that the model may think for; None: as it sees fit."""
        self._inner.thinking(tokens)

    def show(self, image):
        """Shows an image with the next question: a file's bytes."""
        self._inner.show(bytes(image))

    def tool(self, function=None, *, name=None, about=None, schema=None):
        """Offers a function, also as a decorator. Its annotations, or a JSON Schema, say what it is called with."""
        if function is None:
            return lambda function: self.tool(function, name=name, about=about, schema=schema)
        about, schema, run = _tool(function, about, schema)
        self._inner.tool(name or function.__name__, about, json.dumps(schema), run)
        return function

    def must_call(self, must=True):
        """The first answer to each question calls a tool."""
        self._inner.must_call(must)

    def stream(self, question, schema=None):
        """The answer as it comes; a schema holds it."""
        return Answer(self._inner.stream(question, None if schema is None else json.dumps(schema)))

    def ask(self, question):
        """The whole answer's text."""
        return self.stream(question).finish()

    def ask_for(self, type_, question):
        """An answer that is a value of a type: a pydantic model, a dataclass, list[int] and so on."""
        adapter = _adapter(type_)
        text = self.stream(question, adapter.json_schema()).finish()
        try:
            return adapter.validate_json(text)
        except ValueError as error:
            raise TokenmillError(f"the answer is not a value of the type (was it cut?): {error}") from error

    def stream_for(self, type_, question):
        """What is known of such a value while it is made, as plain objects, and the value at last."""
        adapter = _adapter(type_)
        answer, last = self.stream(question, adapter.json_schema()), None
        for _ in answer:
            known = _tokenmill.known(answer.text)
            if known is not None and known != last:
                last = known
                yield json.loads(known)
        yield adapter.validate_json(answer.text)


class Model:
    """A model that answers. Options: context, threads, memory_bytes, device, parallel, queue, kv, mode, fetch."""

    def __init__(self, name, **options):
        self._inner = _tokenmill.Model(str(name), json.dumps(options))

    @property
    def name(self):
        return self._inner.name

    @property
    def context(self):
        """Most tokens of prompt and answer together."""
        return self._inner.context

    def stats(self):
        """Counts of what it does now ("running", "waiting") and has done since it was opened, as a dict."""
        return self._inner.stats()

    def chat(self, system=None, **sampling):
        chat = Chat(self._inner.chat())
        if system is not None:
            chat.system(system)
        chat.sampling(**sampling)
        return chat

    def complete(self, prompt, **sampling):
        """How a text goes on, as it comes."""
        return Answer(self._inner.complete(prompt, json.dumps(sampling)))

    def embed(self, texts):
        """A vector for each text: an array of numpy where that is installed, else lists."""
        vectors = self._inner.embed(list(texts))
        try:
            import numpy
        except ImportError:
            return vectors
        return numpy.array(vectors, dtype=numpy.float32).reshape(len(vectors), self._inner.width)

    def rerank(self, query, documents):
        """How much each document has to do with a query."""
        return self._inner.rerank(query, list(documents))
