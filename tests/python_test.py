"""Tests of the package for Python against the program, in the build folder:

    python3 tests/python_test.py [unittest's options]

tools/check_wheel.sh tests the wheel."""
import ast
import doctest
import gc
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(ROOT, "python"), os.path.join(ROOT, "tools")]

import numpy

import fidelio
import make_python_verbs
from fidelio import _library, _program

PROGRAM = _library.place_of("fidelio")
SMALL = os.path.join(ROOT, "models", "quill-1m")
HYBRID = os.path.join(ROOT, "models", "quill-hybrid")
CHATS = os.path.join(ROOT, "models", "quill-26m")
IDS = [1, 17, 300, 4, 99, 1023, 7]
PROMPTS = ["The package contains", "Kira has 53 books.", "A", "In the first", "Once upon a time, there"]


def run(*words):
    return subprocess.run([PROGRAM, *words], check=True, capture_output=True, text=True).stdout


def generated(model, prompt, *words):
    report = json.loads(run("generate", model, "--prompt", prompt, "--json", "-", *words))
    return report["text"], report["finish_reason"]


class SmallModel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = fidelio.Model(SMALL)

    @classmethod
    def tearDownClass(cls):
        cls.model.close()


class SameAsTheProgram(SmallModel):
    def program_logits(self, ids, *words):
        with tempfile.TemporaryDirectory() as folder:
            path, out = os.path.join(folder, "ids.json"), os.path.join(folder, "logits.npy")
            with open(path, "w") as file:
                json.dump(ids, file)
            run("logits", SMALL, "--ids", path, "-o", out, *words)
            return numpy.load(out)

    def test_logits_have_the_same_bits(self):
        for ids in (IDS, [5], list(range(2, 402))):
            found = self.model.logits(ids)
            self.assertEqual((found.dtype, found.shape), (numpy.float32, (len(ids), self.model.vocabulary)))
            self.assertEqual(found.tobytes(), self.program_logits(ids).tobytes())

    def test_options_are_the_programs(self):
        for activations, kv in (("f32", None), ("a8", "i8")):
            words = ["--activations", activations, *(["--kv", kv] if kv else [])]
            with fidelio.Model(SMALL, activations=activations, kv=kv, draft="off", threads=1) as model:
                self.assertEqual(model.logits(IDS).tobytes(), self.program_logits(IDS, *words).tobytes())

    def test_greedy_text(self):
        answers = self.model.generate(PROMPTS, max_tokens=40)
        for prompt, answer in zip(PROMPTS, answers):
            self.assertEqual((answer.text, answer.finish_reason), generated(SMALL, prompt, "-n", "40"), prompt)

    def test_sampled_text(self):
        sampling = fidelio.Sampling(temperature=0.9, top_k=50, top_p=0.95, min_p=0.01, repetition_penalty=1.1, seed=7)
        words = ["-n", "40", "--temperature", "0.9", "--top-k", "50", "--top-p", "0.95", "--min-p", "0.01",
                 "--repetition-penalty", "1.1", "--seed", "7"]
        for prompt, answer in zip(PROMPTS, self.model.generate(PROMPTS, sampling, max_tokens=40)):
            self.assertEqual((answer.text, answer.finish_reason), generated(SMALL, prompt, *words), prompt)

    def test_a_stream_says_the_same(self):
        whole = self.model.generate(PROMPTS[0], max_tokens=40)
        pieces = list(self.model.generate(PROMPTS[0], max_tokens=40, stream=True))
        self.assertGreater(len(pieces), 1)
        self.assertEqual("".join(pieces), whole.text)

    def test_tokens(self):
        for text in PROMPTS:
            ids = json.loads(run("tokenize", SMALL, "--text", text))
            self.assertEqual(self.model.tokenize(text), ids)
            bare = json.loads(run("tokenize", SMALL, "--text", text, "--no-special"))
            self.assertEqual(self.model.tokenize(text, special=False), bare)
            self.assertEqual(self.model.detokenize(bare), text)
            self.assertEqual(self.model.generate(ids, max_tokens=9).text, self.model.generate(text, max_tokens=9).text)

    def test_the_verbs_are_those_of_the_program(self):
        with open(make_python_verbs.TARGET, encoding="utf-8") as file:
            self.assertEqual(file.read(), make_python_verbs.text_of(PROGRAM),
                             "run tools/make_python_verbs.py build/fidelio --write")


class Chats(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = fidelio.Model(CHATS)

    @classmethod
    def tearDownClass(cls):
        cls.model.close()

    def test_an_answer(self):
        question = "What is 348 + 5127?"
        messages = [{"role": "user", "content": question}]
        answer = self.model.chat(messages, max_tokens=60)
        text, _ = generated(CHATS, question, "--chat", "-n", "60")
        self.assertEqual((answer.thought + answer.text).split(), text.split())  # The program shows the thought too.
        self.assertEqual(answer.message["role"], "assistant")
        streamed = "".join(delta.get("content") or "" for delta in self.model.chat_stream(messages, max_tokens=60))
        self.assertEqual(streamed, answer.text)
        self.assertIn(question, self.model.render(messages))

    def test_tools_are_in_the_prompt(self):
        tool = {"type": "function", "function": {"name": "look_up_weather", "parameters": {
            "type": "object", "properties": {"town": {"enum": ["Paris", "Rome"]}}, "required": ["town"]}}}
        messages = [{"role": "user", "content": "What is 348 + 5127?"}]
        with fidelio.Model(HYBRID, threads=1) as model:  # Its template shows tools.
            self.assertIn("look_up_weather", model.render(messages, tools=[tool]))
        answer = self.model.chat(messages, tools=[tool], tool_choice="required", max_tokens=200)
        self.assertEqual(answer.finish_reason, "tool_calls")
        self.assertEqual(answer.tool_calls[0]["function"]["name"], "look_up_weather")
        self.assertIn(json.loads(answer.tool_calls[0]["function"]["arguments"])["town"], ["Paris", "Rome"])


class Errors(SmallModel):
    def refused(self, words, call, *arguments, **options):
        with self.assertRaises(fidelio.Error) as caught:
            call(*arguments, **options)
        self.assertIn(words, str(caught.exception))
        return caught.exception

    def test_of_opening(self):
        self.refused("no-such-model", fidelio.Model, "no-such-model")
        self.refused("Model has no option --activation; did you mean --activations?", fidelio.Model, SMALL, activation=1)
        self.refused("tpu", fidelio.Model, SMALL, device="tpu")
        self.refused("--threads", fidelio.Model, SMALL, threads=-1)

    def test_of_requests(self):
        error = self.refused("temperature", self.model.generate, "A", fidelio.Sampling(temperature=-1))
        self.assertEqual(error.code, 400)
        self.refused("the prompt is empty", self.model.generate, [[1], ""], add_special_tokens=False)
        self.refused("maximum context length", self.model.generate, "a " * 100000)
        self.refused("give max_tokens", self.model.generate, "A", max_new_tokens=3)
        self.refused("num_beams", self.model.generate, "A", num_beams=3)
        self.refused("no form in JSON", self.model.generate, "A", regex=object())
        self.refused("token ids from 0", self.model.detokenize, [10**6])
        self.refused("recommended", self.model.generate, "A", "greedy")
        self.refused("there is no /v1/nothing", self.model.post, "/v1/nothing", {})
        self.refused("stream=True takes one prompt", self.model.generate, ["A"], stream=True)

    def test_of_logits(self):
        self.refused("expected 1 to", self.model.logits, [])
        self.refused("outside the vocabulary", self.model.logits, [-1])
        self.refused("expected token ids of 32 bits", self.model.logits, [2**40])
        self.refused("expected 1 to", self.model.logits, [1] * 100000)

    def test_of_verbs(self):
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "out")
            error = self.refused("compress has no option --eer; did you mean --ear?", fidelio.compress, SMALL, out, eer=1)
            self.assertEqual(error.code, 2)
            self.refused("no-such-model", fidelio.quantize, "no-such-model", out, "int8g64")
            self.refused("int4g7000", fidelio.quantize, SMALL, out, "int4g7000")
            self.assertEqual(os.listdir(folder), [])

    def test_of_a_closed_model(self):
        model = fidelio.Model(SMALL)
        stream = model.generate("A", max_tokens=10**6, ignore_eos=True, stream=True, n=64)
        next(stream)
        model.close()
        model.close()
        self.refused("the model was closed", list, stream)
        self.refused("the model was closed", model.generate, "A")
        self.refused("the model was closed", model.logits, IDS)

    def test_of_a_fork(self):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                self.model.generate("A")
                words = "nothing was raised"
            except fidelio.Error as error:
                words = str(error)
            with fidelio.Model(SMALL, threads=1) as own:
                words += "|" + own.generate(PROMPTS[0], max_tokens=9).text
            os.write(writing, words.encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            words, _, text = pipe.read().decode().partition("|")
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertIn("before this process was forked", words)
        self.assertEqual(text, self.model.generate(PROMPTS[0], max_tokens=9).text)


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class ManyCalls(SmallModel):
    def test_eight_threads(self):
        alone = [answer.text for answer in self.model.generate(PROMPTS, max_tokens=24)]
        bits = self.model.logits(IDS).tobytes()
        wrong = []

        def work(number):
            for turn in range(6):
                which = (number + turn) % len(PROMPTS)
                if self.model.generate(PROMPTS[which], max_tokens=24).text != alone[which]:
                    wrong.append(which)
                if turn % 3 == 0 and self.model.logits(IDS).tobytes() != bits:
                    wrong.append("logits")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_a_dropped_stream_ends_its_work(self):
        stream = self.model.generate("A", max_tokens=10**6, ignore_eos=True, stream=True, n=64)
        next(stream)
        self.assertGreater(running(self.model), 0)
        stream.close()
        for _ in range(200):
            if running(self.model) == 0:
                return
            time.sleep(0.05)
        self.fail("the dropped answer goes on")

    # One round may find memory that the first rounds left free, so what the second thousands add is judged. A leak of a
    # call's answer (a kilobyte) would add two megabytes.
    def test_nothing_leaks(self):
        def calls(count):
            for _ in range(count):
                self.model.tokenize("The package contains")
                self.model.detokenize(IDS)
            for _ in range(count // 20):
                self.model.generate("A", max_tokens=1)
                self.model.logits(IDS)
            gc.collect()

        calls(1000)
        before = resident()
        calls(2000)
        self.assertLess(resident() - before, 2 << 20)

    def test_views_keep_the_memory(self):
        row = self.model.logits(IDS)[3]
        expected = self.model.logits(IDS)[3].tobytes()
        gc.collect()
        for _ in range(20):
            self.model.logits(IDS)
        self.assertEqual(row.tobytes(), expected)


def running(model):
    """How many answers are under way, as GET /metrics says."""
    text = _library.Pulled(model._handle, "GET", "/metrics", b"").whole().decode()
    return sum(float(line.split()[-1]) for line in text.splitlines() if re.match(r"\w+:num_requests_running\b", line))


class Verbs(unittest.TestCase):
    def test_reports(self):
        report = fidelio.inspect(SMALL)
        self.assertEqual(report["architecture"], json.loads(run("inspect", SMALL, "--json", "-"))["architecture"])
        self.assertIn("<table>", report._repr_html_())

    def test_quantize_evaluate_export(self):
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "q")
            text = os.path.join(ROOT, "models", "data", "docs-heldout.txt")
            made = fidelio.quantize(SMALL, out, "int8g32", embedding="int8g32")
            self.assertEqual(made["output"], out)
            report = fidelio.evaluate(out, text=[text], reference=SMALL, context=128, windows=2)
            self.assertGreater(report["ear"]["value"], 0.9)
            exported = fidelio.export(out, os.path.join(folder, "ct"), "compressed-tensors")
            self.assertTrue(os.path.isdir(exported["output"]))

    def test_progress_is_shown(self):
        seen = []

        class Bar:
            def follow(self, line):
                seen.append(line["fraction"])

            def close(self):
                seen.append("closed")

        bar, _program._Bar = _program._Bar, Bar
        try:
            with tempfile.TemporaryDirectory() as folder:
                fidelio.quantize(SMALL, os.path.join(folder, "q"), "int4g64", method="gptq", calibration_tokens=4096)
        finally:
            _program._Bar = bar
        self.assertEqual(seen[-1], "closed")
        self.assertEqual(seen[:-1], sorted(seen[:-1]))

    def test_an_interrupt_leaves_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            code = ("import fidelio, sys, threading, _thread\n"
                    "threading.Timer(1.5, _thread.interrupt_main).start()\n"
                    f"fidelio.quantize({CHATS!r}, {os.path.join(folder, 'q')!r}, 'int4g64', method='gptq')\n")
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
            self.assertIn("KeyboardInterrupt", child.stderr)
            self.assertFalse([name for name in os.listdir(folder) if name.endswith(".tmp")])


class Pages(unittest.TestCase):
    def test_the_examples_of_the_page(self):
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(os.path.join(ROOT, "models"), os.path.join(folder, "models"))
            before = os.getcwd()
            os.chdir(folder)
            try:
                failed, tried = doctest.testfile(os.path.join(ROOT, "docs", "python.md"), module_relative=False,
                                                 optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
            finally:
                os.chdir(before)
        self.assertGreater(tried, 10)
        self.assertEqual(failed, 0)

    def test_the_syntax_is_that_of_python_3_9(self):
        folder = os.path.dirname(os.path.abspath(fidelio.__file__))
        for name in os.listdir(folder):
            if name.endswith(".py"):
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    ast.parse(file.read(), name, feature_version=(3, 9))


if __name__ == "__main__":
    unittest.main()
