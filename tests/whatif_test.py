"""carpool whatif: hand-made traces in every format, counted by hand; bad traces exit 2."""
import base64
import collections
import io
import json
import os
import pathlib
import pickle
import struct
import subprocess
import sys
import tempfile
import types
import unittest
import zipfile

CARPOOL = os.environ["CARPOOL"]


def run(*args):
    return subprocess.run([CARPOOL, *map(str, args)], capture_output=True, text=True, timeout=60)


# Two tokens of one step. Vanilla loads 5 distinct experts; k0=2 leaves 0 1 of the first and 4 0 of the second.
ROWS = [[0, 1, 2], [4, 0, 3]]


def npy(rows, dtype="<i4", code="i"):
    """[tokens, 1 layer, k]"""
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({len(rows)}, 1, {len(rows[0])}), }}"
    header = header.encode().ljust(117) + b"\n"
    data = struct.pack(f"<{len(rows) * len(rows[0])}{code}", *[i for row in rows for i in row])
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


class Tensor:
    """What torch.save would see of an int32 tensor."""

    def __init__(self, shape, values):
        self.shape, self.values = tuple(shape), values


def torch_save(document):
    """The bytes torch.save writes for `document`: a pickle of plain data and tensors, in an uncompressed archive."""
    utils = types.ModuleType("torch._utils")
    exec("def _rebuild_tensor_v2(*args): pass", utils.__dict__)
    torch = types.ModuleType("torch")
    torch.IntStorage = type("IntStorage", (), {"__module__": "torch"})
    sys.modules.update({"torch": torch, "torch._utils": utils})
    storages = []

    class Storage:
        def __init__(self, values):
            self.key, self.size = str(len(storages)), len(values)
            storages.append(struct.pack(f"<{len(values)}i", *values))

    class Pickler(pickle.Pickler):
        def persistent_id(self, value):
            if isinstance(value, Storage):
                return "storage", torch.IntStorage, value.key, "cpu", value.size
            return None

        def reducer_override(self, value):
            if not isinstance(value, Tensor):
                return NotImplemented
            strides = [1]
            for n in value.shape[:0:-1]:
                strides.insert(0, strides[0] * n)
            return utils._rebuild_tensor_v2, (Storage(value.values), 0, value.shape, tuple(strides), False,
                                              collections.OrderedDict())

    program, archive = io.BytesIO(), io.BytesIO()
    try:
        Pickler(program, protocol=2).dump(document)
    finally:
        del sys.modules["torch"], sys.modules["torch._utils"]
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as z:
        z.writestr("record/data.pkl", program.getvalue())
        z.writestr("record/byteorder", "little")
        for key, data in enumerate(storages):
            z.writestr(f"record/data/{key}", data)
    return archive.getvalue()


class Shell:
    def __reduce__(self):
        return os.system, ("echo this must never run",)


def sglang(passes, physical=None):
    """passes: (forward mode, positions, [rows of one layer])."""
    records = [{"forward_pass_id": i, "rank": 0, "gatherer_key": "primary", "input_ids": [7] * len(rows),
                "positions": positions, "extend_seq_lens": None, "forward_mode": mode,
                # A dense layer first: nothing was recorded for it.
                "topk_ids_of_layer": Tensor((2, len(rows), 3), [-1] * 3 * len(rows) + [e for r in rows for e in r]),
                "misc_objects": [], "average": 0.5}
               for i, (mode, positions, rows) in enumerate(passes)]
    return torch_save({"records": records, "last_physical_to_logical_map": physical})


class Whatif(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def write(self, name, data):
        path = pathlib.Path(self.folder.name, name)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    def rows(self, path, *args):
        result = run("whatif", path, "--routing", "vanilla,oea:k0=2,topk:k=1", "--json", *args)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def check(self, report):
        self.assertEqual([r["distinct_experts"] for r in report["rows"]], [5, 3, 2])
        self.assertEqual([r["experts_per_row"] for r in report["rows"]], [3, 2, 1])
        self.assertAlmostEqual(report["rows"][1]["saved"], 0.4)

    def test_csv(self):
        path = self.write("a.csv", "layer,token,experts\n0,0,0 1 2\n0,1,4;0;3\n")
        report = self.rows(path)
        self.assertEqual((report["format"], report["steps"], report["has_scores"]), ("csv", 1, False))
        self.check(report)
        self.assertAlmostEqual(report["rows"][1]["mass_kept"], 1.5 / (1 + 1 / 2 + 1 / 3))
        # One token per step: nothing is shared.
        alone = self.rows(path, "--batch", 1)
        self.assertEqual(alone["steps"], 2)
        self.assertEqual(alone["rows"][0]["distinct_experts"], 3)
        steps = self.write("b.csv", "step,layer,token,experts\n7,0,0,0 1 2\n9,0,1,4 0 3\n")
        self.assertEqual(self.rows(steps)["steps"], 2)

    def test_npy(self):
        raw = npy(ROWS)
        self.check(self.rows(self.write("a.npy", raw)))
        self.check(self.rows(self.write("b.npy", npy(ROWS, "<i2", "h"))))
        cut = run("whatif", self.write("cut.npy", raw[:-4]))
        self.assertEqual(cut.returncode, 2)
        self.assertIn("24 bytes", cut.stderr)

    def test_sglang(self):
        prefill = (1, [0, 1], [[9, 10, 11], [12, 13, 14]])
        report = self.rows(self.write("a.pt", sglang([prefill, (2, [5, 8], ROWS), (2, [6, 9], ROWS)])))
        self.assertEqual((report["format"], report["steps"], report["rows_per_step"]), ("sglang", 2, 2))
        self.check(report)
        # Positions say who goes on; the worst request is numbered by its first decode pass.
        lossy = [[0, 1, 2], [5, 6, 7]]
        report = self.rows(self.write("b.pt", sglang([(2, [5, 8], ROWS), (2, [9, 6], [lossy[1], lossy[0]])])))
        worst = report["rows"][2]["worst"]
        self.assertEqual({w["request"] for w in worst}, {0, 1})
        # Physical experts 5... are copies of logical ones: five of them are in use again.
        copies = Tensor((2, 10), [0, 1, 2, 3, 4, 0, 1, 2, 3, 4] * 2)
        report = self.rows(self.write("c.pt", sglang([(2, [5, 8], [[5, 6, 7], [9, 0, 8]])], copies)))
        self.assertEqual(report["rows"][0]["distinct_experts"], 5)

    def test_answers(self):
        def answer(experts, **more):
            return {"choices": [{"index": 0, "routed_experts": experts}], "usage": {"completion_tokens": 2}, **more}

        prompt = [[[20, 21, 22]]]
        for name, first, second in (("lists", prompt + [[ROWS[0]]], prompt * 2 + [[ROWS[1]]]),
                                    ("base64", *(base64.b64encode(npy([prompt[0][0], r])).decode() for r in ROWS))):
            lines = "\n".join(json.dumps(answer(e)) for e in (first, second))
            report = self.rows(self.write(f"{name}.jsonl", lines))
            self.assertEqual((report["format"], report["steps"], report["rows_per_step"]), ("responses", 1, 2))
            self.check(report)
            self.assertEqual({w["request"] for w in report["rows"][2]["worst"]}, {0, 1})
        apart = [answer([[r]], prompt_routed_experts=prompt) for r in ROWS]
        self.check(self.rows(self.write("apart.json", json.dumps(apart))))

    def test_own_server_and_trace(self):
        from serving import Server
        with Server() as server:
            answer = server.complete(["It was", "The captain"], max_tokens=6, ignore_eos=True,
                                     moe={"return_routed_experts": True})
        report = self.rows(self.write("carpool.json", json.dumps(answer)))
        self.assertEqual((report["format"], report["steps"], report["rows_per_step"], report["layers"]),
                         ("responses", 5, 2, 5))
        trace = pathlib.Path(self.folder.name, "trace.jsonl")
        result = run("generate", "--prompt", "It was", "--prompt", "The captain said", "--max-tokens", 6, "--ignore-eos",
                     "--trace", trace, "--trace-level", 2)
        self.assertEqual(result.returncode, 0, result.stderr)
        report = self.rows(trace)
        self.assertEqual(report["format"], "carpool")
        self.assertEqual({w["request"] for w in report["rows"][2]["worst"]}, {1, 2})  # the engine's numbers

    def test_own(self):
        lines = [json.dumps({"record": "row", "step": 3, "layer": 0, "row": r, "phase": "decode", "vanilla": ids,
                             "best": [{"id": e, "a": a, "b": 0, "c": a} for e, a in zip(ids, (0.6, 0.3, 0.1))]})
                 for r, ids in enumerate(ROWS)]
        report = self.rows(self.write("t.jsonl", "\n".join(lines) + "\n"))
        self.check(report)
        self.assertTrue(report["has_scores"])
        self.assertAlmostEqual(report["rows"][1]["mass_kept"], 0.9, places=5)
        self.assertAlmostEqual(report["rows"][2]["worst"][0]["mass_kept"], 0.6, places=5)

    def test_bytes(self):
        path = self.write("a.csv", "0,0,0 1 2\n0,1,4 0 3\n")
        report = self.rows(path, "--shape", "glm-5", "--hardware", "h200")
        self.assertAlmostEqual(report["rows"][0]["bytes"], 5 * 3 * 6144 * 2048 * 0.5625)
        self.assertGreater(report["rows"][0]["us"], report["rows"][1]["us"])

    def test_bad_traces(self):
        for name, text, word in (("a", "0,0,1 1\n", "twice"), ("b", "0,zero,1 2\n", "line 1"),
                                 ("c", "a,b,c\n", "layer"), ("d", "", "no routed rows"),
                                 ("e", "{\"record\": \"step\"}\n", "level 2"), ("f", "{broken\n", "line 1"),
                                 ("g", "0,0,-5\n", "expert ids"),
                                 ("h", "{\"choices\": [{}], \"usage\": {\"completion_tokens\": 2}}", "routed_experts"),
                                 ("i", "{\"choices\": [{\"routed_experts\": []}]}", "completion_tokens"),
                                 ("j", "[{\"choices\": [{\"routed_experts\": \"AAAA\"}], \"usage\": "
                                       "{\"completion_tokens\": 2}}]", "numpy.save"),
                                 ("k", "PK\x03\x04 and nothing else", "directory"),
                                 ("l", torch_save({"logical_count": 1}), "per_token"),
                                 ("m", torch_save({"records": []}), "no decode passes"),
                                 ("n", torch_save({"records": [{"forward_mode": 2}]}), "topk_ids_of_layer"),
                                 ("o", torch_save({"call": Shell()}), "wants to call"),
                                 ("p", sglang([(2, [5], ROWS[:1])])[:-30], "directory"),
                                 ("q", sglang([(2, [5], [[1, 1, 2]])]), "twice")):
            result = run("whatif", self.write(name, text))
            self.assertEqual(result.returncode, 2, (name, result.stdout, result.stderr))
            self.assertIn(word, result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertEqual(run("whatif", "/no/such/trace").returncode, 2)
        path = self.write("a.csv", "0,0,0 1 2\n0,1,4 0 3\n")
        self.assertIn("--experts", run("whatif", path, "--experts", 3).stderr)
        self.assertIn("k0", run("whatif", path, "--routing", "oea:k0=9").stderr)


if __name__ == "__main__":
    unittest.main()
