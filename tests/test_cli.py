"""The command as its user meets it: text on stdout, one line for every mistake, clean endings."""

import dataclasses
import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tiny_model import write_tiny_model

from cugraphs import LLM, SamplingParams
from cugraphs.cli import main

GREEDY = ["--temperature", "0", "--max-tokens", "20", "--ignore-eos"]
COMMAND = [sys.executable, "-m", "cugraphs"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_tiny_model(tmp_path_factory.mktemp("cli") / "tiny"))


@pytest.fixture(scope="module")
def slow_folder(tmp_path_factory):
    """Never ends by itself within a test: no EOS, and a long way to its limit."""
    return str(
        write_tiny_model(
            tmp_path_factory.mktemp("cli") / "slow", config={"max_position_embeddings": 100_000}
        )
    )


@pytest.fixture(scope="module")
def expected(folder):
    """What the API answers to "The quick" under `GREEDY`."""
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    return LLM(folder, max_num_seqs=1).generate("The quick", params)[0]


def type_in(monkeypatch, text):
    """Give `text`, or bytes, as stdin."""
    data = text.encode() if isinstance(text, str) else text
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


@pytest.fixture
def start():
    """Starts the command in a process of its own; what still runs after the test is killed."""
    processes = []

    def start_command(*arguments, env=(), **streams):
        # Buffered as a user's: only then does a flush at the end have something to write.
        inherited = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            text=True,
            env={**inherited, **dict(env)},
            **{**pipes, **streams},
        )
        processes.append(process)
        return process

    yield start_command
    for process in processes:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


# generate


def test_generate_cuts_a_prompt_that_is_too_long(folder, capsys):
    options = ["--temperature", "0", "--ignore-eos", "--json", "--truncate-prompt-tokens"]
    for asked, kept, tokens in (("-1", 255, 1), ("200", 200, 56)):
        assert main(["generate", folder, "long " * 400, *options, asked]) == 0
        record = json.loads(capsys.readouterr().out)
        assert len(record["prompt_token_ids"]) == kept
        assert len(record["outputs"][0]["token_ids"]) == tokens


def test_generate_prints_the_answer_and_statistics_apart(folder, expected, capsys):
    assert main(["generate", folder, "The quick", *GREEDY]) == 0
    out, err = capsys.readouterr()
    assert out == expected.outputs[0].text + "\n"
    last = err.splitlines()[-1]
    assert last.startswith("cugraphs: 20 tokens in ")
    assert last.endswith("finish_reason length")


def test_generate_echoes_the_prompt(folder, expected, capsys):
    assert main(["generate", folder, "The quick", "--echo", *GREEDY]) == 0
    assert capsys.readouterr().out == "The quick" + expected.outputs[0].text + "\n"


def test_generate_reads_stdin(folder, expected, capsys, monkeypatch):
    type_in(monkeypatch, "The quick")
    assert main(["generate", folder, "-", *GREEDY]) == 0
    assert capsys.readouterr().out == expected.outputs[0].text + "\n"


def test_generate_json_is_the_request_output(folder, expected, capsys):
    assert main(["generate", folder, "The quick", "--json", *GREEDY]) == 0
    out = capsys.readouterr().out
    record = json.loads(out)
    assert out.count("\n") == 1
    assert record.pop("seconds") > 0
    wanted = json.loads(json.dumps(dataclasses.asdict(expected)))
    assert record.pop("times").keys() == wanted.pop("times").keys()
    assert record == wanted


def test_generate_streams(start, slow_folder):
    """The first text is there long before the last."""
    process = start("generate", slow_folder, "a", "--temperature", "0", "--ignore-eos")
    assert process.stdout.read(20)
    assert process.poll() is None


def test_sampling_options_reach_the_model(folder, capsys):
    options = {
        "--temperature": 0.9,
        "--top-k": 30,
        "--top-p": 0.9,
        "--min-p": 0.01,
        "--repetition-penalty": 1.1,
        "--presence-penalty": -0.5,
        "--frequency-penalty": 0.5,
        "--seed": 4,
        "--max-tokens": 15,
    }
    names = {flag[2:].replace("-", "_"): value for flag, value in options.items()}
    params = SamplingParams(stop=["zz", "dog"], ignore_eos=True, **names)
    answer = LLM(folder).generate("a", params)[0].outputs[0]
    flat = [str(item) for pair in options.items() for item in pair]
    flat += ["--stop", "zz", "--stop", "dog", "--ignore-eos"]
    assert main(["generate", folder, "a", *flat]) == 0
    assert capsys.readouterr().out == answer.text + "\n"


def test_a_filter_or_a_seed_alone_samples(folder, capsys):
    """Where generation_config.json says greedy, --seed would change nothing otherwise."""
    texts = []
    for options in (["--seed", "1"], ["--seed", "2"], ["--temperature", "0", "--seed", "1"], []):
        assert main(["generate", folder, "a", "--max-tokens", "9", "--ignore-eos", *options]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] != texts[1]
    assert texts[2] == texts[3]
    assert texts[0] != texts[3]


def test_generate_takes_the_models_own_sampling(tmp_path, capsys):
    config = {"do_sample": True, "max_new_tokens": 3, "num_return_sequences": 2}
    folder = str(write_tiny_model(tmp_path / "m", generation_config=config))
    assert main(["generate", folder, "a", "--json", "--ignore-eos"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [len(answer["token_ids"]) for answer in record["outputs"]] == [3]


def test_an_answer_without_text_is_an_empty_line(folder, expected, capsys):
    first = expected.outputs[0].text[0]
    assert main(["generate", folder, "The quick", "--stop", first, *GREEDY]) == 0
    out, err = capsys.readouterr()
    assert out == "\n"
    assert err.splitlines()[-1].startswith("cugraphs: 1 token in ")
    assert err.splitlines()[-1].endswith("finish_reason stop")


# inspect


def test_inspect_prints_config_program_memory_and_price(folder, capsys):
    assert main(["inspect", folder, "--batch", "3", "--context", "100"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for part in ("hidden_size", "rms_norm", "paged_decode_attention", "arena: ", "KV pool: "):
        assert part in out
    assert "a decode step streams " in out
    assert "3 rows, 100 tokens in each sequence" in out
    assert main(["inspect", folder, "--summary"]) == 0
    assert len(capsys.readouterr().out) < len(out)


def test_program_and_placement_are_the_same_in_every_process(start, folder):
    """Nothing in them hangs on the order of a set, which the hash seed changes."""
    processes = [
        start("inspect", folder, "--batch", "8", env={"PYTHONHASHSEED": seed})
        for seed in ("0", "1", "77")
    ]
    texts = {process.communicate(timeout=60)[0] for process in processes}
    assert len(texts) == 1
    assert all(process.returncode == 0 for process in processes)


def test_inspect_json(folder, capsys):
    assert main(["inspect", folder, "--json", "--batch", "2"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    record = json.loads(out)
    config = json.loads(Path(folder, "config.json").read_text())
    # Embedding and head, and for each of 2 layers: q, o; k, v; gate, up, down; 2 norms; last norm.
    vocab, hidden, kv, inner = config["vocab_size"], 32, 16, 48
    layer = 2 * hidden**2 + 2 * hidden * kv + 3 * hidden * inner + 2 * hidden
    assert record["parameters"] == 2 * vocab * hidden + 2 * layer + hidden
    assert record["stored_bytes"] == 4 * record["parameters"]
    # Of the embedding only the rows of 2 tokens move; every other weight moves once.
    assert record["decode_step"]["weight_bytes"] >= 4 * (2 * layer + vocab * hidden)
    assert record["decode_step"]["weight_bytes"] <= 4 * record["parameters"]
    assert record["decode_step"]["batch"] == 2


# chat


def test_chat_answers_with_history(folder, capsys, monkeypatch):
    llm = LLM(folder, max_num_seqs=1)
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    turns = [{"role": "user", "content": "Hello"}]
    first = llm.chat(turns, params).outputs[0].text
    turns += [{"role": "assistant", "content": first}, {"role": "user", "content": "and\nmore"}]
    second = llm.chat(turns, params).outputs[0].text
    type_in(monkeypatch, "Hello\n\n  \nand\\\nmore\n")
    assert main(["chat", folder, *GREEDY]) == 0
    out, err = capsys.readouterr()
    assert out == f"{first}\n{second}\n"
    assert "cut at --max-tokens" in err


def test_chat_commands(folder, capsys, monkeypatch):
    llm = LLM(folder, max_num_seqs=1)
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)

    def answer(*messages):
        roles = [{"role": role, "content": content} for role, content in messages]
        return llm.chat(roles, params).outputs[0].text + "\n"

    lines = ["hi", "/reset", "hi", "/system Be brief.", "hi", "/reset", "hi", "/system", "hi"]
    type_in(monkeypatch, "\n".join([*lines, "/bogus now", "/exit", "not reached"]))
    assert main(["chat", folder, "--system", "Be kind.", *GREEDY]) == 0
    out, err = capsys.readouterr()
    kind, brief = (answer(("system", s), ("user", "hi")) for s in ("Be kind.", "Be brief."))
    assert out == kind + kind + brief + brief + answer(("user", "hi"))
    assert "cugraphs: /bogus is no command, expected /reset, /system TEXT or /exit" in err


def test_chat_ends_with_its_input_even_in_an_unfinished_line(folder, capsys, monkeypatch):
    type_in(monkeypatch, "hi\\")
    assert main(["chat", folder, *GREEDY]) == 0
    assert capsys.readouterr().out.count("\n") >= 1
    type_in(monkeypatch, "")
    assert main(["chat", folder, *GREEDY]) == 0
    assert capsys.readouterr().out == ""


def test_a_conversation_that_outgrows_the_model_goes_on_after_reset(folder, capsys, monkeypatch):
    type_in(monkeypatch, f"{'long ' * 400}\nhi\n")
    assert main(["chat", folder, *GREEDY]) == 0
    out, err = capsys.readouterr()
    assert "expected at most 255: max_model_len is 256" in err
    assert "/reset starts anew" in err
    assert out.strip()


def test_a_conversation_that_outgrows_the_model_loses_its_beginning_where_asked(
    folder, capsys, monkeypatch
):
    type_in(monkeypatch, f"{'long ' * 400}\nhi\n")
    assert main(["chat", folder, *GREEDY, "--truncate-prompt-tokens", "200"]) == 0
    out, err = capsys.readouterr()
    assert "expected at most" not in err and out.count("\n") >= 2


# Mistakes: exit code 2, one line on stderr that names the file or the field, no traceback


MISTAKES = [
    ([], "the following arguments are required: COMMAND; see cugraphs --help"),
    (["translate"], "invalid choice: 'translate' (choose from"),
    (["generate"], "the following arguments are required: MODEL, PROMPT; see cugraphs generate"),
    (["generate", "FOLDER"], "the following arguments are required: PROMPT"),
    (["generate", "FOLDER", "a", "--bogus"], "unrecognized arguments: --bogus; see cugraphs gener"),
    (["generate", "FOLDER", "a", "--max_tokens=3"], "--max_tokens=3 (did you mean --max-tokens?)"),
    (["bench", "host", "demo", "more"], "unrecognized arguments: more; see cugraphs bench host --"),
    (["generate", "FOLDER", "a", "--temp", "1"], "unrecognized arguments: --temp 1"),
    (["generate", "FOLDER", "a", "--top-k", "x"], "argument --top-k: invalid int value: 'x'"),
    (["generate", "FOLDER", "a", "--stop"], "argument --stop: expected one argument"),
    (["generate", "FOLDER", "a", "--temperature", "-1"], "temperature is -1.0, expected 0 <= "),
    (["generate", "FOLDER", "a", "--temperature", "nan"], "temperature is nan, expected 0 <= "),
    (["generate", "FOLDER", "a", "--top-p", "0"], "top_p is 0.0, expected 0 < top_p <= 1"),
    (["generate", "FOLDER", "a", "--max-tokens", "0"], "max_tokens is 0, expected"),
    (["generate", "FOLDER", "a", "--seed", "-2"], "seed is -2, expected 0 <= seed < 2**64"),
    (["generate", "FOLDER", "a", "--stop", ""], "stop holds '', expected strings of 1 character"),
    (["generate", "FOLDER", "a", "--max-model-len", "1000000000"], "max_model_len is 1000000000"),
    (["generate", "FOLDER", "a", "--max-model-len", "0"], "max_model_len is 0, expected"),
    (["generate", "FOLDER", "a", "--num-kv-blocks", "3"], "num_kv_blocks is 3, expected at least"),
    (["generate", "FOLDER", "a", "--device", "tpu"], "device is 'tpu', expected 'auto'"),
    (["generate", "FOLDER", "a", "--dtype", "int4"], "dtype is 'int4', expected one of auto"),
    (["generate", "FOLDER", "long " * 400], "tokens, expected at most 255: max_model_len is 256"),
    (["generate", "FOLDER", "\udcff"], "lone surrogate, expected Unicode"),
    (["generate", "/no/such/folder", "a"], "'/no/such/folder' does not exist"),
    (["generate", "", "a"], "'' does not exist"),
    (["chat", "/no/such/folder"], "'/no/such/folder' does not exist"),
    (["chat", "FOLDER", "--top-p", "2"], "top_p is 2.0, expected 0 < top_p <= 1"),
    (["generate", "/not/looked/for/yet", "a", "--top-p", "2"], "top_p is 2.0, expected 0 <"),
    (["chat", "/not/looked/for/yet", "--max-tokens", "0"], "max_tokens is 0, expected"),
    (["chat", "NO_TEMPLATE"], "the model has no chat template, expected chat_template.jinja"),
    (["inspect"], "one of the arguments MODEL --shape is required; see cugraphs inspect --help"),
    (["inspect", "/no/such/folder"], "'/no/such/folder' does not exist"),
    (["inspect", "FOLDER", "--batch", "0"], "--batch is 0, expected 1 to 1024"),
    (["inspect", "FOLDER", "--batch", "9999"], "--batch is 9999, expected 1 to 1024"),
    (["inspect", "FOLDER", "--context", "0"], "--context is 0, expected 1 to 256"),
    (["inspect", "FOLDER", "--context", "257"], "--context is 257, expected 1 to 256"),
    (["inspect", "FOLDER", "--max-model-len", "0"], "max_model_len is 0, expected"),
    (["inspect", "FOLDER", "--max-model-len", "257"], "max_model_len is 257, expected at most 256"),
    (["inspect", "FOLDER", "--dtype", "int4"], "argument --dtype: invalid choice: 'int4'"),
    (["generate", "EMPTY", "a"], "config.json"),
    (["generate", "NO_WEIGHTS", "a"], "expected model.safetensors"),
    (["generate", "NO_TOKENIZER", "a"], "tokenizer.json: is missing"),
    (["generate", "CUT", "a"], "model.safetensors"),
    (["inspect", "CUT"], "model.safetensors"),
    (["generate", "BROKEN_CONFIG", "a"], "config.json"),
    (["generate", "BROKEN_TOKENIZER", "a"], "tokenizer.json"),
    (["generate", "BROKEN_GENERATION", "a"], "generation_config.json"),
    (["generate", "BEAMS", "a"], "generation_config.json: num_beams is 4, expected 1"),
    (["generate", "NAN", "a"], "hold NaN or infinity, expected numbers; the weights are damaged"),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory, folder):
    """Model folders by what is wrong with them."""
    root = tmp_path_factory.mktemp("wrong")
    made = {"FOLDER": folder}
    nan = {"model.norm.weight": np.full(32, np.nan, np.float32)}
    for name in (
        "NO_WEIGHTS",
        "NO_TOKENIZER",
        "CUT",
        "BROKEN_CONFIG",
        "BROKEN_TOKENIZER",
        "BROKEN_GENERATION",
    ):
        made[name] = str(write_tiny_model(root / name))
    made["NO_TEMPLATE"] = str(write_tiny_model(root / "NO_TEMPLATE", chat_template=None))
    made["BEAMS"] = str(write_tiny_model(root / "BEAMS", generation_config={"num_beams": 4}))
    made["NAN"] = str(write_tiny_model(root / "NAN", weights=nan))
    (root / "EMPTY").mkdir()
    made["EMPTY"] = str(root / "EMPTY")
    (root / "NO_WEIGHTS" / "model.safetensors").unlink()
    (root / "NO_TOKENIZER" / "tokenizer.json").unlink()
    os.truncate(root / "CUT" / "model.safetensors", 5000)
    (root / "BROKEN_CONFIG" / "config.json").write_text('{"architectures": ')
    (root / "BROKEN_TOKENIZER" / "tokenizer.json").write_text("[]")
    (root / "BROKEN_GENERATION" / "generation_config.json").write_text("5")
    return made


@pytest.mark.parametrize(
    ("arguments", "message"), MISTAKES, ids=[" ".join(a)[:60].strip() for a, _ in MISTAKES]
)
def test_a_mistake_is_one_line_and_exit_code_2(folders, capsys, monkeypatch, arguments, message):
    type_in(monkeypatch, "")
    try:
        code = main([folders.get(argument, argument) for argument in arguments])
    except SystemExit as end:  # argparse's own way out
        code = end.code
    out, err = capsys.readouterr()
    lines = err.splitlines()
    errors = [line for line in lines if "error: " in line]
    assert code == 2
    assert out in ("", "\n")
    assert len(errors) == 1
    assert errors[0] == lines[-1]
    assert errors[0].startswith("cugraphs")
    assert message in errors[0]
    assert "Traceback" not in err


def test_a_graph_that_cannot_be_captured_is_refused_before_anything_is_shown(
    folder, capsys, monkeypatch, tmp_path
):
    monkeypatch.setattr("cugraphs.cuda_availability.has_driver", lambda: False)
    assert main(["inspect", folder, "--graph-dot", str(tmp_path / "step.dot")]) == 2
    shown = capsys.readouterr()
    assert not shown.out and shown.err.startswith("cugraphs: error: cuda: ")


def test_traceback_shows_where_an_error_came_from(folder):
    with pytest.raises(ValueError, match="temperature"):
        main(["generate", folder, "a", "--temperature", "-1", "--traceback"])


def test_a_message_cannot_move_the_cursor(capsys):
    assert main(["inspect", "/no/\x1b[2Jsuch"]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_stdin_that_is_no_text(folder, capsys, monkeypatch):
    for command in (["generate", folder, "-"], ["chat", folder]):
        type_in(monkeypatch, b"\xff\xfe")
        assert main(command) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith(f"cugraphs: error: {command[0]}: stdin is no valid text")


# Help


@pytest.mark.parametrize("command", [[], ["generate"], ["chat"], ["plan"], ["inspect"]])
def test_help(capsys, command):
    with pytest.raises(SystemExit) as end:
        main([*command, "--help"])
    out, err = capsys.readouterr()
    assert (end.value.code, err) == (0, "")
    assert out.startswith(f"usage: {' '.join(['cugraphs', *command])} ")
    assert "``" not in out
    if not command:
        assert all(name in out for name in ("generate", "chat", "plan", "inspect"))


def test_version(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("cugraphs ")


# Endings, in processes of their own


def test_ctrl_c_during_generate(start, slow_folder):
    process = start("generate", slow_folder, "a", "--temperature", "0", "--ignore-eos")
    assert process.stdout.read(5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "cugraphs: interrupted"
    assert "Traceback" not in err
    assert err.count("interrupted") == 1


def test_ctrl_c_stops_an_answer_of_chat_and_not_the_chat(start, slow_folder):
    """To the whole group, as a terminal sends it: the template's process gets it too."""
    process = start(
        "chat", slow_folder, "--temperature", "0", "--ignore-eos", start_new_session=True
    )
    shown = process.stdout.fileno()
    for _ in range(2):
        process.stdin.write("hello\n")
        process.stdin.flush()
        assert os.read(shown, 1)
        os.killpg(process.pid, signal.SIGINT)
        while "stopped" not in (line := process.stderr.readline()):
            assert line
        while select.select([shown], [], [], 0)[0]:  # the rest of the answer
            assert os.read(shown, 4096)
    assert process.communicate("/exit\n", timeout=30) == ("", "")
    assert process.returncode == 0


def test_ctrl_c_at_a_prompt_that_is_no_terminal_ends_chat(start, folder):
    process = start("chat", folder, *GREEDY)
    process.stdin.write("hello\n")
    process.stdin.flush()
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "cugraphs: interrupted"


def test_chat_on_a_terminal(start, folder):
    """Prompts are shown, Ctrl-C drops what was typed, Ctrl-D ends."""
    master, terminal = pty.openpty()
    process = start(
        "chat", folder, *GREEDY, stdin=terminal, stdout=terminal, stderr=terminal,
        start_new_session=True,
    )  # fmt: skip
    os.close(terminal)
    shown = read_until(master, b"> ")
    assert b"/reset forgets" in shown
    os.write(master, b"never mind")
    read_until(master, b"never mind")
    os.kill(process.pid, signal.SIGINT)
    while not select.select([master], [], [], 2)[0]:
        os.kill(process.pid, signal.SIGINT)  # Python misses one that comes just before it waits
    read_until(master, b"> ")
    os.write(master, b"/nothing\n")
    assert b"/nothing is no command" in read_until(master, b"or /exit\r\n> ")
    os.write(master, b"\x04")
    assert process.wait(timeout=30) == 0
    os.close(master)


def read_until(descriptor, end, seconds=30):
    """What a terminal shows up to `end`."""
    shown, limit = b"", time.monotonic() + seconds
    while end not in shown:
        ready, _, _ = select.select([descriptor], [], [], max(limit - time.monotonic(), 0))
        assert ready, f"no {end!r} in {shown!r}"
        shown += os.read(descriptor, 4096)
    return shown


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "SLOW", "a"],
        ["inspect", "SLOW"],
        ["check", "add", "--stage", "emulate", "--dtype", "float32"],
        ["--help"],
    ],
    ids=lambda a: a[0],
)
def test_a_reader_that_leaves_is_met_quietly(start, slow_folder, arguments):
    arguments = [slow_folder if argument == "SLOW" else argument for argument in arguments]
    reader, writer = os.pipe()
    os.close(reader)
    process = start(*arguments, stdout=writer)
    os.close(writer)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 141
    assert all(
        line.startswith(("cugraphs: device", "cugraphs: dtype")) for line in err.splitlines()
    )


def test_a_full_disk_is_an_error_in_one_line(start, folder):
    with open("/dev/full", "w") as full:
        process = start("generate", folder, "a", *GREEDY, stdout=full)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 2
    assert err.splitlines()[-1] == "cugraphs: error: No space left on device"
    assert "Exception" not in err


@pytest.mark.parametrize("redirections", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_standard_streams(folder, expected, redirections):
    command = " ".join([*COMMAND, "generate", folder, "'The quick'", *GREEDY, redirections])
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    is_closed = ">&-" in redirections.split()
    assert done.stdout == ("" if is_closed else f"{expected.outputs[0].text}\n")


def test_stdout_that_knows_ascii_only(start, folder):
    ascii_only = {"PYTHONIOENCODING": "ascii"}
    process = start("generate", folder, "é😀", "--echo", *GREEDY, env=ascii_only)
    assert process.communicate(timeout=30)[0].startswith("??")
    assert process.returncode == 0
    process = start("generate", folder, "é😀", "--json", *GREEDY, env=ascii_only)
    assert json.loads(process.communicate(timeout=30)[0])["prompt"] == "é😀"
