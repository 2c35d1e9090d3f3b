# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Models in a database: what is stored, found, and goes on."""

import datetime
import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading

import pytest
import safetensors.torch
import torch

import cleave
import store_script
from cleave.feed import FeedError, Store, store as store_module, tables
from database_support import KINDS, databases, needs, server  # noqa: F401
from process_script import net, tokens
from proofs import ALL


def where_of(databases, kind):  # noqa: F811
    return {"sqlite": lambda: databases.sqlite("models"), "mongo": databases.mongo,
            "postgres": lambda: databases.server().address}[kind]()


@pytest.fixture
def small_parts(monkeypatch):
    """A file has many parts, and the last one is shorter."""
    monkeypatch.setattr(store_module, "_PART", 1000)


@pytest.fixture(params=KINDS)
def store(request, databases, small_parts):  # noqa: F811
    found = Store(where_of(databases, request.param))
    for record in found.find():
        found.remove(record)
    return found


@pytest.fixture
def one_store(databases, small_parts):  # noqa: F811
    return Store(databases.sqlite("models"))


@pytest.fixture(scope="module")
def facts():
    """A step after two steps, and what it does in three more."""
    made = store_script.compiled()
    store_script.losses(made, 2)
    made.data_position = 8
    state, training = made.state_dict(), made.training_state()
    expected = [*store_script.losses(made, 3), store_script.digest(made)]
    return made, state, training, expected


@pytest.fixture
def step(facts):
    made, state, training, _ = facts
    made.load_state_dict(state)
    made.load_training_state(training)
    return made


@pytest.fixture(scope="module")
def second():
    return store_script.compiled(seed=9)


@pytest.fixture
def other(second):
    """Another step, whose state is another one."""
    store_script.losses(second, 1)
    return second


def test_it_continues_bit_equal(store, step, other, facts):
    """In another process, whose parameters and seed were others before; of mongomock, which has
    no other process, and by default of SQLite, in another step."""
    store.save(step)
    where = getattr(store._tables, "_server", store._tables.name)
    if where.startswith("postgresql") or (ALL and not where.startswith("mongodb")):
        out = subprocess.check_output([sys.executable, store_script.__file__, where, "3"], text=True)
        found = out.split()
    else:
        store.load(store.latest(), other)
        found = [str(other.step), str(other.data_position), *store_script.losses(other, 3),
                 store_script.digest(other)]
    assert found[:2] == ["2", "8"]
    assert [*map(float, found[2:5]), found[5]] == facts[3]


def test_another_mesh_goes_on(one_store, step):
    """The files are those of a checkpoint, which has no mesh."""
    one_store.save(step)
    other = store_script.compiled(seed=9, mesh={"dp": 2}, plan=["zero3"])
    one_store.load(one_store.latest(), other)
    assert store_script.digest(other) == store_script.digest(step)


def test_a_module_infers(store, step):
    """It gets the weights, and computes the logits of the step."""
    store.save(step)
    module = net(seed=9)
    store.load(store.latest().hash[:8], module)
    for name, value in step.state_dict().items():
        assert torch.equal(module.state_dict()[name], value)
    ids, _ = tokens()
    with torch.no_grad():
        torch.testing.assert_close(module(ids), step.logits(ids))


def test_what_is_known_of_a_model(store, step, other, tmp_path):
    """The hash is that of the files; the parent is what a step was stored or loaded as."""
    start = datetime.datetime.now(datetime.timezone.utc)
    first = store.save(step, query="SELECT 1")
    store_script.losses(step, 1)
    second = store.save(step, query="SELECT 2")
    assert store.save(step, query="SELECT 3") == second  # The same again.
    store.load(first, other)
    store_script.losses(other, 2)
    third = store.save(other)
    step.save(tmp_path / "checkpoint")
    assert store.save(tmp_path / "checkpoint") == second
    records = store.find()
    assert [(r.hash, r.parent, r.query, r.step) for r in records] == [
        (first, None, "SELECT 1", 2), (second, first, "SELECT 2", 3), (third, first, None, 4)]
    files = ["model.safetensors", "optimizer.safetensors", "training.json"]
    store.fetch(first, tmp_path / "fetched")
    assert sorted(os.listdir(tmp_path / "fetched")) == files
    data = b"".join((tmp_path / "fetched" / name).read_bytes() for name in files)
    assert hashlib.sha256(data).hexdigest() == first and len(data) == records[0].size > 3000
    for record in records:
        assert start <= datetime.datetime.fromisoformat(record.created) <= datetime.datetime.now(
            datetime.timezone.utc)
    assert store.find(parent=first) == records[1:] and store.find(step=3, query="SELECT 1") == []
    assert store.latest() == records[2] and store.latest(query="SELECT 1") == records[0]
    store.remove(first)
    assert store.find() == records[1:]
    with pytest.raises(FeedError, match="no models whose hash begins with"):
        store.load(first, other)
    store.save(other, parent="another")
    assert store.find() == records[1:]


def test_its_blob_is_a_file_of_safetensors(store, step):
    """Other programs read the parts one after another."""
    name = store.save(step)
    blob = b"".join(store._tables.parts(name, "model.safetensors"))
    weights = safetensors.torch.load(blob)
    assert all(torch.equal(weights[key], value) for key, value in step.state_dict().items())


def test_the_tables(databases, step, small_parts):  # noqa: F811
    """As documented, for who reads them without Cleave."""
    name = Store(databases.sqlite("models")).save(step, query="q", parent="p")
    connection = sqlite3.connect(databases.sqlite("models"))
    (found,) = connection.execute("SELECT hash, parent, query, step, files FROM cleave_models")
    assert found[:4] == (name, "p", "q", 2)
    for file, facts in json.loads(found[4]).items():
        parts = [data for (data,) in connection.execute(
            "SELECT data FROM cleave_model_parts WHERE hash = ? AND file = ? ORDER BY part",
            (name, file))]
        assert hashlib.sha256(b"".join(parts)).hexdigest() == facts["sha256"]
        assert sum(map(len, parts)) == facts["bytes"] and max(map(len, parts)) <= 1000


def test_a_store_that_ends_half_way(store, step, other, monkeypatch):
    """Leaves no model; the next one stores it."""
    real = store_module._read_parts
    calls = []

    def parts(path):
        for data in real(path):
            calls.append(path)
            if len(calls) > total + 5:
                raise OSError("the disk is gone")
            yield data

    total = 0
    monkeypatch.setattr(store_module, "_read_parts", parts)
    with pytest.raises(OSError):
        store.save(step)
    # It is read twice: to be hashed, and to be stored.
    calls.clear()
    total = sum(-(-size // 1000) for size in sizes(step))
    with pytest.raises(OSError):
        store.save(step)
    assert store.find() == []
    calls.clear()
    total = 10 ** 9
    name = store.save(step)
    assert [r.hash for r in store.find()] == [name]
    store.load(name, other)
    assert store_script.digest(other) == store_script.digest(step)


def sizes(step):
    """Bytes of each file of a checkpoint."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        step.save(os.path.join(folder, "step"))
        return [entry.stat().st_size for entry in os.scandir(os.path.join(folder, "step"))]


@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_a_damaged_model(one_store, databases, step, other, damage):  # noqa: F811
    """Is refused, and changes nothing."""
    name = one_store.save(step)
    with sqlite3.connect(databases.sqlite("models")) as connection:
        connection.execute("UPDATE cleave_model_parts SET data = zeroblob(1000) WHERE part = 2"
                           if damage == "changed" else
                           "DELETE FROM cleave_model_parts WHERE part = 2")
    before = store_script.digest(other)
    with pytest.raises(FeedError, match="model.safetensors of the model .* is damaged"):
        one_store.load(name, other)
    assert store_script.digest(other) == before


@pytest.mark.parametrize("damage", ["part", "file", "record"])
@pytest.mark.parametrize("fresh", [True, False])
def test_a_damaged_model_is_not_fetched(one_store, databases, step, tmp_path, damage, fresh):  # noqa: F811
    """The folder has no checkpoint, and nothing else, after the error; also if the files and their
    hashes in the record fit each other, and are not those of the model's name."""
    name, folder = one_store.save(step), tmp_path / "fetched"
    with sqlite3.connect(databases.sqlite("models")) as connection:
        if damage == "part":
            connection.execute("UPDATE cleave_model_parts SET data = zeroblob(1000) WHERE part = 2")
        else:
            changed = b'{"step": 9}'
            connection.execute("UPDATE cleave_model_parts SET data = ? WHERE file = 'training.json'", (changed,))
            files = json.loads(connection.execute("SELECT files FROM cleave_models").fetchone()[0])
            if damage == "record":
                files["training.json"] = {"bytes": len(changed), "sha256": hashlib.sha256(changed).hexdigest()}
            connection.execute("UPDATE cleave_models SET files = ?", (json.dumps(files),))
    if not fresh:
        folder.mkdir()
    with pytest.raises(FeedError, match="of the model .* is damaged"):
        one_store.fetch(name, folder)
    assert not os.path.exists(folder) if fresh else not os.listdir(folder)
    # A module gets parameters alone; what they were stored with is compared as well.
    module, before = net(1), net(1).state_dict()
    with pytest.raises(FeedError, match="of the model .* is damaged"):
        one_store.load(name, module)
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())


@pytest.mark.parametrize("kind", KINDS)
def test_first_uses_at_once(databases, kind):  # noqa: F811
    """Tables that several make at the same time are there for all."""
    where, count = where_of(databases, kind), 12
    for _ in range(8 if ALL else 3):
        if kind == "postgres":
            with databases.server().connect() as connection:
                connection.execute("DROP TABLE IF EXISTS cleave_models, cleave_model_parts")
        elif kind == "sqlite" and os.path.exists(where):
            os.remove(where)
        ready, wrong = threading.Barrier(count), []

        def use():
            try:
                ready.wait()
                assert Store(where).find() == []
            except Exception as error:
                wrong.append(error)

        threads = [threading.Thread(target=use) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong, wrong


def test_another_model_is_refused(one_store, step):
    store, name = one_store, one_store.save(step)
    with pytest.raises((KeyError, ValueError)):
        store.load(name, torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match="not a torch.nn.Module or a Step"):
        store.load(name, {})


def test_names(one_store, step, tmp_path):
    """The beginning of a hash is one, if no other model's begins so."""
    name = one_store.save(step)
    for wrong in ("", "zz"):
        with pytest.raises(FeedError, match="no models whose hash begins with"):
            one_store.load(wrong, step)
    with sqlite3.connect(one_store._tables.name) as connection:
        connection.execute("INSERT INTO cleave_models SELECT ?, parent, query, step, created, files "
                           "FROM cleave_models", (name[:8] + "x" * 56,))
    with pytest.raises(FeedError, match=f"2 models whose hash begins with '{name[:8]}'"):
        one_store.load(name[:8], step)
    assert one_store.fetch(name[:9], tmp_path / "fetched").hash == name
    with pytest.raises(FeedError, match="no model with query 'x' and step 3"):
        one_store.latest(query="x", step=3)


def test_bad_places(tmp_path, databases):  # noqa: F811
    with pytest.raises(TypeError, match="where is int, not the path of an SQLite file"):
        Store(3)
    with pytest.raises(FeedError, match="unable to open database file"):
        Store(tmp_path / "nothing" / "models.db")
    needs("psycopg")
    with pytest.raises(FeedError, match="cannot connect"):
        Store(f"postgresql://someone@/base?host={tmp_path}")
    with pytest.raises(FeedError, match="cannot connect"):
        Store(f"dbname=base host={tmp_path}")
    for nowhere in ("", ":memory:"):
        with pytest.raises(ValueError, match="SQLite would keep no file"):
            Store(nowhere)
    store = Store(tmp_path / "models.db")
    with pytest.raises(FileNotFoundError, match="no checkpoint here"):
        store.save(tmp_path)
    for wrong in (3, None, object()):
        with pytest.raises(TypeError, match="model is .*, not a compiled step or the folder"):
            store.save(wrong)
    for wrong in (dict(query=3), dict(parent=b"ab")):
        with pytest.raises(TypeError, match="it must be text"):
            store.save(tmp_path, **wrong)
        with pytest.raises(TypeError, match="it must be text"):
            store.find(**wrong)
    with pytest.raises(TypeError, match="step is '3'; it must be an integer"):
        store.find(step="3")
    with pytest.raises(FeedError, match="no models"):
        store.fetch("ab", tmp_path / "none")


def test_a_folder_that_holds_something(one_store, step, tmp_path):
    name = one_store.save(step)
    (tmp_path / "precious").write_text("data")
    with pytest.raises(FileExistsError, match="is not empty"):
        one_store.fetch(name, tmp_path)


def test_a_state_that_is_not_finite_is_not_stored(one_store, step):
    state = step.state_dict()
    state["head.bias"][0] = float("nan")
    step.load_state_dict(state)
    with pytest.raises(cleave.StepError, match="not finite"):
        one_store.save(step)
    assert one_store.find() == []


def test_two_processes_store_the_same(databases, step):  # noqa: F811
    """The second one changes nothing."""
    server_place = databases.server().address
    one, other = Store(server_place), Store(server_place)
    assert one.save(step) == other.save(step) and len(one.find()) == len(other.find())


@pytest.mark.parametrize("kind", KINDS)
def test_threads_take_turns(databases, kind, small_parts, tmp_path):  # noqa: F811
    """Each model of several threads over one store is there in whole."""
    store, failed = Store(where_of(databases, kind)), []

    def work(number):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name in ("model.safetensors", "optimizer.safetensors"):
            (folder / name).write_bytes(f"{number} {name} ".encode() * 2000)
        (folder / "training.json").write_text(json.dumps({"step": number}))
        try:
            name = store.save(folder, query="threads")
            store.fetch(name, folder / "fetched")
            assert name in [found.hash for found in store.find(query="threads")]
            for path in folder.glob("*.*"):
                assert (folder / "fetched" / path.name).read_bytes() == path.read_bytes()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert not failed
    assert sorted(found.step for found in store.find(query="threads")) == [0, 1, 2, 3]


def test_a_store_after_a_fork(databases):  # noqa: F811
    """Each process has a connection of its own."""
    store = Store(databases.server().address)

    def backend():
        return store._tables._run(
            lambda cursor: cursor.execute("SELECT pg_backend_pid()").fetchone()[0])

    own = backend()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            os._exit(backend() == own)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert backend() == own


@pytest.mark.skipif(not ALL, reason="with CLEAVE_TEST_ALL=1")
def test_ranks_that_are_processes(databases):  # noqa: F811
    """The first one stores; all get the hash, when the model is there."""
    out = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
         store_script.__file__, str(databases.sqlite("models")), "ranks"],
        capture_output=True, text=True, timeout=300)
    assert out.returncode == 0, out.stderr
    one, other = (json.loads(line) for line in out.stdout.splitlines() if line.startswith("{"))
    assert one == other and one["alike"] and one["step"] == 2
    records = Store(databases.sqlite("models")).find()
    assert [record.hash for record in records] == one["names"]
    assert [record.parent for record in records] == [None, one["names"][0]]


def test_columns():
    assert tables.COLUMNS == ("hash", "parent", "query", "step", "created", "files")
