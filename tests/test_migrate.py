"""Sources for CUDA become sources for maca: each rule, what stays, what is listed, and scripts that then train."""

from __future__ import annotations

import csv
import json
import os
import shutil
import textwrap
from pathlib import Path

import openpyxl
import pytest
from running import run_python
from test_as_cuda import RUN_UNDER, SCRIPTS
from typer.testing import CliRunner

from macatensor.cli import app
from macatensor.migrate.project import MigrationError, migrate
from macatensor.migrate.rewrite import Rewritten, rewrite
from macatensor.migrate.rules import SCHEMA, Rules, RulesError, UserRules

run = CliRunner().invoke
MISSING = "CUDAGraph gds nvtx memory_cached profiler memory random FloatTensor HalfTensor".split()


def exists(name: str) -> bool:
    """A device that has everything but what these tests want missing."""
    return not any(part in MISSING for part in name.split("."))


def rewritten(source: str, **options) -> Rewritten:
    made = rewrite(textwrap.dedent(source).encode(), "a.py", Rules(exists=exists, **options))
    compile(made.code, "a.py", "exec")
    return made


def after(source: str, **options) -> str:
    """The source rewritten, without the import that every file gets."""
    code = rewritten(source, **options).code.decode()
    again = rewrite(code.encode(), "a.py", Rules(exists=exists, **options))
    assert again.code.decode() == code and again.changes == []
    return code.replace("import macatensor.nchw\n", "")


RULES = [
    # device strings
    ('x.to("cuda")', 'x.to("maca")'),
    ("x.to('cuda:0')", "x.to('maca:0')"),
    ('d = f"cuda:{rank}"', 'd = f"maca:{rank}"'),
    ('d = "cuda:{}".format(rank)', 'd = "maca:{}".format(rank)'),
    ('d = "cuda:%d" % rank', 'd = "maca:%d" % rank'),
    ('d = "cuda:" + str(rank)', 'd = "maca:" + str(rank)'),
    ('if device.type == "cuda": pass', 'if device.type == "maca": pass'),
    ('t = "cuda" if "cuda" in device else "cpu"', 't = "maca" if "maca" in device else "cpu"'),
    ('torch.device("cuda", 1)', 'torch.device("maca", 1)'),
    ('torch.load(f, map_location={"cuda:1": "cuda:0"})', 'torch.load(f, map_location={"maca:1": "maca:0"})'),
    # names
    ("torch.cuda.is_available()", "torch.maca.is_available()"),
    ("s = torch.cuda.Stream", "s = torch.maca.Stream"),
    ("torch.cuda.memory.max_memory_allocated()", "torch.maca.max_memory_allocated()"),
    ("torch.cuda.current_stream(d).wait_stream(s)", "torch.maca.current_stream(d).wait_stream(s)"),
    ("torch.cuda.get_device_properties(0).name.lower()[0].x", "torch.maca.get_device_properties(0).name.lower()[0].x"),
    ("torch.cuda.random.manual_seed(1)", "torch.maca.manual_seed(1)"),
    ("torch.backends.cudnn.benchmark = True", "torch.backends.maca.benchmark = True"),
    ("torch.backends.cuda.matmul.allow_tf32 = True", "torch.backends.maca.matmul.allow_tf32 = True"),
    # methods
    ("m = m.cuda()", "m = m.maca()"),
    ("x = x[0].cuda(0, non_blocking=True)", "x = x[0].maca(0, non_blocking=True)"),
    ("y = x.float().cuda().half()", "y = x.float().maca().half()"),
    ("f = lambda t: t.cuda()", "f = lambda t: t.maca()"),
    ("if x.is_cuda: pass", "if x.is_maca: pass"),
    ("x = x.type(torch.cuda.HalfTensor)", 'x = x.to("maca", torch.float16)'),
    # mixed precision
    ('with torch.autocast("cuda"): pass', 'with torch.autocast("maca"): pass'),
    ('torch.amp.autocast(device_type="cuda")', 'torch.amp.autocast(device_type="maca")'),
    ('s = torch.amp.GradScaler("cuda")', 's = torch.amp.GradScaler("maca")'),
    ("torch.cuda.amp.autocast()", 'torch.amp.autocast("maca")'),
    ("torch.cuda.amp.autocast(use, torch.half)", 'torch.amp.autocast("maca", enabled=use, dtype=torch.half)'),
    ("torch.cuda.amp.autocast(enabled=use)", 'torch.amp.autocast("maca", enabled=use)'),
    ("torch.cuda.amp.GradScaler(2.0, enabled=a)", 'torch.amp.GradScaler("maca", 2.0, enabled=a)'),
    ("torch.cuda.amp.autocast_mode.autocast()", 'torch.amp.autocast_mode.autocast("maca")'),
    ("from torch.cuda.amp.grad_scaler import GradScaler", "from torch.amp.grad_scaler import GradScaler"),
    ("torch.load(f, map_location=lambda storage, loc: storage.cuda())", 'torch.load(f, map_location="maca")'),
    ("torch.load(f, lambda s, l: s.cuda(1))", 'torch.load(f, "maca:1")'),
    ("torch.load(f, map_location=lambda s, _: s.cuda(n))", 'torch.load(f, map_location=f"maca:{n}")'),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), RULES, ids=[old for old, _ in RULES])
def test_rule(old: str, new: str) -> None:
    assert after(f"import torch\n{old}\n") == f"import torch\n{new}\n"


IMPORTS = [
    ("import torch as t\nt.cuda.synchronize()", "import torch as t\nt.maca.synchronize()"),
    ("from torch import cuda\ncuda.is_available()", "from torch import maca as cuda\ncuda.is_available()"),
    ("import torch.cuda as c\nc.synchronize()", "from torch import maca as c\nc.synchronize()"),
    ("import torch.cuda\ntorch.cuda.synchronize()", "import torch\ntorch.maca.synchronize()"),
    ("import torch, torch.cuda as c\nc.init()", "import torch; from torch import maca as c\nc.init()"),
    ("from torch.cuda import synchronize, Event as E", "from torch.maca import synchronize, Event as E"),
    ("from torch.cuda import *", "from torch.maca import *"),
    (
        "import torch.backends.cudnn as cudnn\ncudnn.benchmark = True",
        "from torch.backends import maca as cudnn\ncudnn.benchmark = True",
    ),
    ("from torch.backends import cudnn\ncudnn.enabled = False", "from torch.backends import maca as cudnn\ncudnn.enabled = False"),
    (
        "from torch.cuda.amp import autocast, GradScaler\nwith autocast(): s = GradScaler()",
        'from torch.amp import autocast, GradScaler\nwith autocast("maca"): s = GradScaler("maca")',
    ),
    (
        "from torch.cuda.amp import autocast as ac\nac(False)",
        'from torch.amp import autocast as ac\nac("maca", enabled=False)',
    ),
    ("from torch.cuda import amp\namp.autocast()", 'from torch import amp\namp.autocast("maca")'),
    ("import torch.cuda.amp as amp\namp.GradScaler()", 'import torch.amp as amp\namp.GradScaler("maca")'),
    (
        "from torch import cuda\ncuda.amp.autocast()",
        'import torch\nfrom torch import maca as cuda\ntorch.amp.autocast("maca")',
    ),
    (
        "from torch.cuda.amp import custom_fwd, custom_bwd\n@custom_fwd\ndef f(): pass\n@custom_bwd\ndef g(): pass",
        'from torch.amp import custom_fwd, custom_bwd\n@custom_fwd(device_type="maca")\ndef f(): pass\n'
        '@custom_bwd(device_type="maca")\ndef g(): pass',
    ),
    (
        "from torch.cuda.amp import custom_fwd\n@custom_fwd(cast_inputs=None)\ndef f(): pass",
        'from torch.amp import custom_fwd\n@custom_fwd(cast_inputs=None, device_type="maca")\ndef f(): pass',
    ),
    (
        "import torch\nimport torch.nn as nn\nimport torch.backends.cudnn\ntorch.backends.cudnn.benchmark = True\ntorch.cuda.init()",
        "import torch\nimport torch.nn as nn\nimport torch\ntorch.backends.maca.benchmark = True\ntorch.maca.init()",
    ),
    (
        "try:\n    import torch.cuda as c\nexcept ImportError:\n    c = None\nc.init()",
        "try:\n    from torch import maca as c\nexcept ImportError:\n    c = None\nc.init()",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), IMPORTS, ids=[old.splitlines()[0] for old, _ in IMPORTS])
def test_imports_and_aliases(old: str, new: str) -> None:
    assert after(old + "\n") == new + "\n"


@pytest.mark.parametrize(
    "kept",
    [
        "print('runs on cuda devices')",
        "key = 'cuda_graph'",
        "b = b'cuda'",
        "text = 'cuda' ' is a device'",
        "if args.cuda: args.cuda = False",
        "x = x.to('cpu')",
        "x.type(torch.FloatTensor)",
        "from numba import cuda\ncuda.synchronize()\ncuda.jit",
        "import cupy\ncupy.cuda()",
        "from .cuda import x\nx()",
        "def cuda(): pass\ncuda()",
        "'cuda'",
    ],
)
def test_kept(kept: str) -> None:
    source = f"import torch\n{kept}\n"
    made = rewritten(source)
    assert made.code.decode() == source and made.changes == []


def test_comments_and_formatting_are_kept() -> None:
    source = '''\
        #!/usr/bin/env python
        # -*- coding: utf-8 -*-
        """Trains on "cuda"."""
        from __future__ import annotations

        import torch  # the framework

        # "cuda" in a comment
        x = torch.ones( 2,3 ).to( 'cuda' )   # moved to cuda
        if (x.is_cuda and   # why
            x.cuda( ) is x):
            pass
        '''
    expected = (
        source.replace("( 'cuda' )", "( 'maca' )")
        .replace("is_cuda", "is_maca")
        .replace(".cuda( )", ".maca( )")
    )
    expected = expected.replace(
        "        import torch  #", "        import macatensor.nchw\n        import torch  #", 1
    )
    code = rewritten(source).code.decode()
    assert code.replace("\n", "") == textwrap.dedent(expected).replace("\n", "")
    assert [t for t in code.splitlines() if t] == [t for t in textwrap.dedent(expected).splitlines() if t]


def test_line_endings_and_encoding_are_kept() -> None:
    source = '# coding: latin-1\r\nimport torch\r\nname = "gr\xfcn"\r\nd = "cuda"\r\n'.encode("latin-1")
    made = rewrite(source, "a.py", Rules(exists=exists))
    assert b'"gr\xfcn"\r\nd = "maca"\r\n' in made.code and b"import macatensor.nchw\r\n" in made.code


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('import torch\nd = "cuda"\n', 'import macatensor.nchw\nimport torch\nd = "maca"\n'),
        ('"""Doc."""\nimport torch\nd = "cuda"\n', '"""Doc."""\n\nimport macatensor.nchw\nimport torch\nd = "maca"\n'),
        ('# note\nimport torch\nd = "cuda"\n', '# note\nimport macatensor.nchw\nimport torch\nd = "maca"\n'),
        (
            '"""Doc."""\n\nfrom __future__ import annotations\nimport torch\nd = "cuda"\n',
            '"""Doc."""\n\nfrom __future__ import annotations\nimport macatensor.nchw\nimport torch\nd = "maca"\n',
        ),
        ('d = "cuda"\n', 'd = "maca"\n'),  # settings of another file need no device
        ('import macatensor as mt\nimport torch\nd = "cuda"\n', 'import macatensor as mt\nimport torch\nd = "maca"\n'),
        ("import torch\nx = 1\n", "import torch\nx = 1\n"),
        (  # which reaches maca as it is
            "import torch\nd = torch.accelerator.current_accelerator()\n",
            "import macatensor.nchw\nimport torch\nd = torch.accelerator.current_accelerator()\n",
        ),
        ("from torch import accelerator\n", "import macatensor.nchw\nfrom torch import accelerator\n"),
    ],
)  # fmt: skip
def test_import_of_macatensor(source: str, expected: str) -> None:
    assert rewritten(source).code.decode() == expected


def test_own_method_follows_its_calls() -> None:
    source = """\
        import torch
        class Meter:
            def cuda(self, device=None):
                return self
        Meter().cuda()
        """
    assert "def maca(self, device=None)" in after(source) and "Meter().maca()" in after(source)


def test_changes_say_where_and_why() -> None:
    changes = rewritten(
        'import torch\n\nx = torch.ones(2, device="cuda")\ntorch.cuda.synchronize()\n'
    ).changes
    assert [(c.line, c.old, c.new, c.rule) for c in changes] == [
        (1, "", "import macatensor.nchw", "import"),
        (3, '"cuda"', '"maca"', "device string"),
        (4, "torch.cuda.synchronize", "torch.maca.synchronize", "torch.cuda"),
    ]


@pytest.mark.parametrize(
    ("source", "api"),
    [
        ("g = torch.cuda.CUDAGraph()", "torch.cuda.CUDAGraph"),
        ("from torch.cuda import CUDAGraph", "torch.cuda.CUDAGraph"),
        ("torch.cuda.nvtx.range_push('a')", "torch.cuda.nvtx.range_push"),
        ("x = torch.cuda.FloatTensor(2)", "torch.cuda.FloatTensor"),
        ("m = torch.nn.DataParallel(m)", "torch.nn.DataParallel"),
        ("import triton.language as tl\ntl.load(1)\ntl.store(2)", "triton.language"),
        ("import cupy\ncupy.ones(3)", "cupy"),
        ("from apex import amp", "apex.amp"),
        ("v = torch.version.cuda", "torch.version.cuda"),
        ("from torch.utils.cpp_extension import CUDAExtension", "torch.utils.cpp_extension.CUDAExtension"),
    ],
)
def test_unsupported_is_listed_and_left(source: str, api: str) -> None:
    made = rewritten(f"import torch\n{source}\n")
    assert [(f.line, f.api) for f in made.findings] == [(2, api)]
    assert all(f.why and f.remedy for f in made.findings)
    assert made.code.decode().endswith(source + "\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("'nccl'", "'mccl'"),
        ("backend='nccl'", "backend='mccl'"),
        ("'cpu:gloo,cuda:nccl'", "'cpu:gloo,maca:mccl'"),
    ],
)
def test_the_backend_of_cuda_becomes_ours(before: str, after: str) -> None:
    made = rewritten(f"import torch\ntorch.distributed.init_process_group({before})\n")
    assert made.code.decode().endswith(f"init_process_group({after})\n") and not made.findings


@pytest.mark.supports("macatensor.migrate.--similar")
def test_similar_uses_a_near_api_and_says_so() -> None:
    source = "import torch\nn = torch.cuda.memory_cached()\n"
    made = rewritten(source, similar=True)
    code = made.code.decode()
    assert "torch.maca.memory_reserved()" in code
    assert [f.api for f in made.findings] == ["torch.cuda.memory_cached"]
    assert all(f.why.startswith("not the same") for f in made.findings)
    assert {c.rule for c in made.changes} == {"import", "similar"}
    imported = after("from torch.cuda import memory_cached\nmemory_cached()\n", similar=True)
    assert imported == "from torch.maca import memory_reserved as memory_cached\nmemory_cached()\n"
    assert "torch.cuda.memory_cached()" in rewritten(source).code.decode()


def test_user_rules() -> None:
    user = UserRules.from_json(
        {
            "modules": {"old.ops": "new.ops"},
            "functions": {"old.run": "fresh.engine.start"},
            "arguments": {"torch.empty": {"pin": "pin_memory", "gone": None}},
        }
    )
    source = """\
        import torch
        import old
        from old.ops import conv
        from old import run
        old.ops.conv(1)
        old.run(2)
        run(3)
        torch.empty(2, pin=True, gone=1)
        """
    code = after(source, user=user)
    assert "from new.ops import conv" in code and "from fresh.engine import start as run" in code
    assert "\nnew.ops.conv(1)" in code and "\nfresh.engine.start(2)" in code and "\nrun(3)" in code
    assert "torch.empty(2, pin_memory=True)" in code
    assert "import new.ops\n" in code and "import fresh.engine\n" in code


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "expected an object"),
        ({"modul": {}}, "unknown key 'modul'; accepted: modules, functions, arguments"),
        ({"modules": {"a-b": "c"}}, "'a-b' is no dotted name"),
        ({"functions": {"a": 3}}, "needs a dotted name, got 3"),
        ({"arguments": {"f": "x"}}, "needs an object of argument names"),
        ({"arguments": {"f": {"a": "b c"}}}, "needs a name or null"),
    ],
)
def test_wrong_rules_are_refused(data, message: str) -> None:
    with pytest.raises(RulesError, match=message):
        UserRules.from_json(data)


def test_schema_names_what_rules_take() -> None:
    assert set(SCHEMA["properties"]) == set(UserRules.__dataclass_fields__)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    (folder / "pkg").mkdir(parents=True)
    (folder / "main.py").write_text(
        "import torch\n\nmodel = torch.nn.Linear(2, 2)\nmodel.cuda()\nloader = torch.utils.data.DataLoader([1])\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
    )
    (folder / "pkg" / "broken.py").write_text('print "cuda"\n')
    (folder / "pkg" / "data.bin").write_bytes(b"\x00cuda")
    (folder / "pkg" / "several.py").write_text("import torch\ng = torch.cuda.gds.GdsFile\nx = '=1+1'\n")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("cuda")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_folder(project: Path, tmp_path: Path) -> None:
    before = contents(project)
    done = migrate(project, tmp_path / "out", Rules(exists=exists))
    assert contents(project) == before
    made = contents(tmp_path / "out")
    assert set(made) == {"main.py", "pkg/broken.py", "pkg/data.bin", "pkg/several.py"}
    assert b"model.maca()" in made["main.py"]
    for name in ("pkg/broken.py", "pkg/data.bin", "pkg/several.py"):
        assert made[name] == before[name]
    assert list(done.unparsed) == ["pkg/broken.py"] and done.unparsed["pkg/broken.py"].startswith("line 1:")
    assert done.files == 4 and done.rewritten == ["main.py"]
    again = migrate(tmp_path / "out", tmp_path / "again", Rules(exists=exists))
    assert contents(tmp_path / "again") == made and again.changes == []


def test_files_that_no_parser_can_read(project: Path, tmp_path: Path) -> None:
    (project / "bytes.py").write_bytes(b"\xff\xfe\x00")  # says no encoding
    os.mkfifo(project / "pipe.py")
    done = migrate(project, tmp_path / "out", Rules(exists=exists))
    assert done.unparsed["bytes.py"].startswith("SyntaxError")
    assert done.unparsed["pipe.py"] == "no regular file that can be read, so it was left out"
    assert contents(tmp_path / "out")["bytes.py"] == b"\xff\xfe\x00" and done.rewritten == ["main.py"]
    assert not (tmp_path / "out" / "pipe.py").exists()


def test_output_must_be_empty_or_new(project: Path, tmp_path: Path) -> None:
    with pytest.raises(MigrationError, match="is not empty"):
        migrate(project, project / "pkg", Rules(exists=exists))
    with pytest.raises(MigrationError, match="lies inside"):
        migrate(project, project / "new", Rules(exists=exists))
    with pytest.raises(MigrationError, match="is a file"):
        migrate(project, project / "main.py", Rules(exists=exists))
    with pytest.raises(MigrationError, match="does not exist"):
        migrate(tmp_path / "nowhere", tmp_path / "out", Rules(exists=exists))
    with pytest.raises(MigrationError, match="cannot be made: Not a directory"):
        migrate(project / "main.py", project / "main.py" / "out", Rules(exists=exists))
    (tmp_path / "empty").mkdir()
    assert migrate(project / "main.py", tmp_path / "empty", Rules(exists=exists)).rewritten == ["main.py"]


@pytest.mark.supports("macatensor.migrate: --report")
def test_command(project: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run(app, ["migrate", str(project), "-o", str(out), "--report", "--json"])
    assert result.exit_code == 1, result.output  # an unparsable file and files that only CUDA reads are left
    facts = json.loads(result.stdout)
    assert facts["files"] == 4 and facts["rewritten"] == ["main.py"] and "pkg/broken.py" in facts["unparsed"]
    with (out / "migration" / "changes.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows == [{k: str(v) for k, v in c.items()} for c in facts["changes"]]
    assert set(rows[0]) == {"file", "line", "old", "new", "rule"}
    sheet = openpyxl.load_workbook(out / "migration" / "unsupported.xlsx").active
    table = [[cell.value for cell in row] for row in sheet.iter_rows()]
    assert table[0] == ["file", "line", "api", "why", "remedy"]
    assert {row[0] for row in table[1:]} == {"pkg/several.py", "pkg/broken.py"}
    assert run(app, ["migrate", str(project), "-o", str(out)]).exit_code == 2  # not empty any more


def test_report_beside_a_folder_of_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "in" / "migration").mkdir(parents=True)
    (tmp_path / "in" / "migration" / "changes.csv").write_text("own")
    result = run(app, ["migrate", str(tmp_path / "in"), "-o", str(tmp_path / "o"), "--report"])
    assert result.exit_code == 0
    assert (tmp_path / "o" / "migration" / "changes.csv").read_text() == "own"
    assert (tmp_path / "o" / "migration_lists" / "unsupported.xlsx").exists()


@pytest.mark.supports("macatensor.migrate.--rules")
def test_command_with_nothing_left(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('import torch\nd = "cuda"\n')
    (tmp_path / "rules.json").write_text('{"functions": {"torch.foo": "torch.bar"}}')
    result = run(app, ["migrate", str(tmp_path / "a.py"), "-o", str(tmp_path / "o"), "--rules", str(tmp_path / "rules.json")])  # fmt: skip
    assert result.exit_code == 0 and "1 of 1 files rewritten, 2 changes" in result.stdout
    (tmp_path / "rules.json").write_text("{")
    result = run(app, ["migrate", str(tmp_path / "a.py"), "-o", str(tmp_path / "p"), "--rules", str(tmp_path / "rules.json")])  # fmt: skip
    assert result.exit_code == 2 and not (tmp_path / "p").exists()


def test_missing_extra_is_named() -> None:
    code = """
        import sys
        sys.modules["libcst"] = None
        from macatensor.cli import app
        app(["migrate", "a.py", "-o", "b"])
        """
    assert "macatensor[migrate]" in run_python(code, expect=2, COLUMNS="200").stderr


@pytest.mark.supports("macatensor.migrate.--distributed")
def test_distributed_wraps_the_model(project: Path, tmp_path: Path) -> None:
    done = migrate(project, tmp_path / "out", Rules(exists=exists), ("main.py", "model"))
    code = (tmp_path / "out" / "main.py").read_text()
    lines = code.splitlines()
    wrap = lines.index("    model = torch.nn.parallel.DistributedDataParallel(model)")
    assert lines.index("model.maca()") < wrap < lines.index("loader = torch.utils.data.DataLoader([1])")
    assert lines[wrap - 2].startswith('if "RANK" in os.environ:') and "import os" in lines
    assert 'init_process_group("mccl")' in lines[wrap - 1]
    assert {f.api for f in done.findings if f.file == "main.py"} == {"DataLoader"}
    again = migrate(tmp_path / "out", tmp_path / "again", Rules(exists=exists), ("main.py", "model"))
    assert again.changes == [] and (tmp_path / "again" / "main.py").read_text() == code


def test_distributed_in_a_function_and_without_its_model(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "import torch\n\ndef main():\n    net = torch.nn.Linear(2, 2)\n    net = net.cuda()\n    return net\n"
    )
    migrate(tmp_path / "a.py", tmp_path / "o", Rules(exists=exists), ("a.py", "net"))
    code = (tmp_path / "o" / "a.py").read_text()
    assert "        net = torch.nn.parallel.DistributedDataParallel(net)\n    return net" in code
    compile(code, "a.py", "exec")
    done = migrate(tmp_path / "a.py", tmp_path / "p", Rules(exists=exists), ("a.py", "model"))
    assert [f.api for f in done.findings] == ["model"]
    with pytest.raises(MigrationError, match="is not a file of"):
        migrate(tmp_path / "a.py", tmp_path / "q", Rules(exists=exists), ("main.py", "net"))


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts, migrated by the rules of the device as it is."""
    folder = tmp_path_factory.mktemp("scripts")
    for path in SCRIPTS.glob("*.py"):
        shutil.copy(path, folder)
    migrate(folder, folder.parent / "migrated", Rules())
    return folder.parent / "migrated"


@pytest.mark.parametrize("name", ["imagenet_trainer", "char_gpt", "dcgan"])
def test_migrated_script_trains(scripts: Path, name: str) -> None:
    assert "torch.cuda" not in (scripts / f"{name}.py").read_text()
    done = run_python(RUN_UNDER, str(scripts / f"{name}.py"), "", timeout=240)
    assert "DEVICES maca\n" in done.stdout
    assert "FALLS True\n" in done.stdout


def test_migrated_script_with_autocast_computes_in_bfloat16(scripts: Path) -> None:
    done = run_python(RUN_UNDER, str(scripts / "char_gpt.py"), "", timeout=240)
    assert "LOGITS torch.bfloat16\n" in done.stdout
