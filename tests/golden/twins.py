"""A converted GGUF file without its numbers: metadata, and for every row of every tensor where in
the hashed tensors its numbers stand, and by which factors they are multiplied."""

import json

import numpy as np


class Sources:
    """Flat tensors times factors, one after the other in f32, and where each value occurs in them."""

    def __init__(self, flats, factors=()):
        self.flats = [np.ascontiguousarray(f, dtype=np.float32) for f in flats]
        self.factors = list(factors)
        for factor in factors:
            self.flats = [f * np.float32(factor) for f in self.flats]
        self.places = {}
        for t, flat in enumerate(self.flats):
            for i, value in enumerate(flat.tolist()):
                self.places.setdefault(value, []).append((t, i))

    def find(self, row):
        """(tensor, start, stride) of a row of at least two numbers, or None."""
        first, second = row[:2].tolist()
        for t, start in self.places.get(first, ()):
            flat = self.flats[t]
            for other, next_ in self.places.get(second, ()):
                stride = next_ - start
                last = start + stride * (len(row) - 1)
                if other != t or stride <= 0 or last >= len(flat):
                    continue
                if np.array_equal(flat[start:last + 1:stride], row):
                    return t, start, stride
        return None


def runs_of(rows, all_sources):
    """Runs `[tensor, start, step between rows, rows, stride]` and the factors of each, or None if a
    row is not found."""
    runs, times = [], []
    for row in rows:
        finds = ((sources.find(row), sources.factors) for sources in all_sources)
        found, factors = next((pair for pair in finds if pair[0]), (None, None))
        if found is None:
            return None
        t, start, stride = found
        if runs and runs[-1][0] == t and runs[-1][4] == stride and times[-1] == factors:
            run = runs[-1]
            if run[3] == 1:
                run[2] = start - run[1]
            if start == run[1] + run[2] * run[3]:
                run[3] += 1
                continue
        runs.append([t, start, 0, 1, stride])
        times.append(factors)
    return runs, times


def plain(field):
    """The value of a metadata field as JSON."""
    value = field.contents()
    if not isinstance(value, (list, tuple)):
        return value
    # JSON has no infinity.
    return [max(v, -3e38) if isinstance(v, float) else v for v in value]


def describe(path, flats, factors=()):
    """The JSON text of a twin; `factors` lists the runs of factors that rows may be multiplied by.
    Rows that stand nowhere are tried in pieces of one `width`."""
    import gguf
    reader = gguf.GGUFReader(path)
    meta = {k: plain(f) for k, f in reader.fields.items()
            if not k.startswith("GGUF.") and not (k.startswith("general.") and k.count(".") > 1)}
    keep = {"general.architecture"}
    meta = {k: v for k, v in meta.items() if not k.startswith("general.") or k in keep}
    sources = [Sources(flats, run) for run in [[], *factors]]
    lines = []
    for tensor in reader.tensors:
        data = np.array(tensor.data, dtype=np.float32)
        shape = [int(n) for n in reversed(tensor.shape)]
        entry = {"name": tensor.name, "shape": shape}
        for width in (shape[-1] // n for n in range(1, 9) if shape[-1] % n == 0):
            found = runs_of(data.reshape(-1, width), sources) if width > 1 else None
            if found:
                break
        if found is None:
            assert data.size <= 4096, f"{tensor.name}: {data.size} numbers of no source"
            entry["values"] = [float(f"{v:.9g}") for v in data.ravel()]
        else:
            if width < shape[-1]:
                entry["width"] = width
            entry["runs"] = found[0]
            if any(found[1]):
                entry["times"] = found[1]
        lines.append("  " + json.dumps(entry))
    head = json.dumps(meta, indent=1).replace("\n", "\n ")
    return f'{{\n "meta": {head},\n "tensors": [\n' + ",\n".join(lines) + "\n ]\n}\n"
