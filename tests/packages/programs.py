"""The programs of docs/packages.md, and what else its packages do on maca. A part of `make long`:

.venv/bin/pip install -r tests/packages/requirements.txt
.venv/bin/python -m pytest -n0 tests/packages/programs.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from running import ROOT, run_python

PAGE = (ROOT / "docs" / "packages.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
(TUNE,) = (program for program in PROGRAMS if "torchtune" in program)
(TITAN,) = (program for program in PROGRAMS if "torchtitan" in program)


@pytest.fixture(scope="session")
def older_torchao(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What PYTHONPATH is for torchtune: the last torchao that has the names it imports comes first."""
    folder = tmp_path_factory.mktemp("torchao")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    subprocess.run([*pip, "-r", str(Path(__file__).with_name("torchtune.txt"))], check=True)
    return os.pathsep.join([str(ROOT), str(folder)])


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_documented_programs_print_what_is_shown(program: str, request: pytest.FixtureRequest) -> None:
    shown = re.findall(r"print\(.*\)  # (.*)", program)
    path = {"PYTHONPATH": request.getfixturevalue("older_torchao")} if program == TUNE else {}
    printed = run_python(program, MACA_FALLBACK="error", **path).stdout.splitlines()
    assert shown and all(line in printed for line in shown), printed


TRAINER = """
import sys, tempfile, torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=0,
                                   eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
data = [{"input_ids": ids, "labels": ids} for ids in torch.randint(64, (16, 16))]
products = set()
model.transformer.h[0].mlp.c_fc.register_forward_hook(lambda m, i, output: products.add((output.device.type, output.dtype)))
options = {name: True for name in sys.argv[1:]}
arguments = TrainingArguments(tempfile.mkdtemp(), max_steps=4, save_steps=2, logging_steps=1, report_to=[],
                              disable_tqdm=True, **options)
trainer = Trainer(model, arguments, train_dataset=data)
print(trainer.train().training_loss, products, arguments.device, arguments.n_gpu, trainer.accelerator.scaler is not None)
"""


@pytest.mark.parametrize("option", [None, "bf16", "fp16"])
def test_trainer_trains_as_on_the_host(option: str | None) -> None:
    options = [option] if option else []
    ours = run_python(TRAINER, *options, MACA_FALLBACK="error").stdout.splitlines()[-1]
    host = run_python(TRAINER, "use_cpu").stdout.splitlines()[-1]
    dtype = {None: "float32", "bf16": "bfloat16", "fp16": "float16"}[option]
    assert f"{{('maca', torch.{dtype})}} maca" in ours and ours.endswith(f"1 {option == 'fp16'}"), ours
    assert "('cpu', torch.float32)" in host, host  # asked for by name, the host is taken
    relative = abs(float(ours.split()[0]) / float(host.split()[0]) - 1)
    assert relative <= (1e-5 if option is None else 5e-3), (ours, host)


def test_trainer_goes_on_from_a_checkpoint() -> None:
    run_python(TRAINER + "trainer.train(resume_from_checkpoint=True)\nassert trainer.state.global_step == 4")


def test_generation_in_all_modes() -> None:
    run_python(
        """
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel
        torch.manual_seed(0)
        host = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=0,
                                          eos_token_id=1, pad_token_id=1)).eval()
        prompt = torch.tensor([[3, 4, 5]])
        modes = [dict(), dict(num_beams=3), dict(cache_implementation="static"), dict(use_cache=False),
                 dict(repetition_penalty=1.5), dict(num_beams=2, num_return_sequences=2)]
        want = [host.generate(prompt, max_new_tokens=8, do_sample=False, **mode) for mode in modes]
        ours = host.to("maca")
        for mode, expected in zip(modes, want):
            got = ours.generate(prompt.to("maca"), max_new_tokens=8, do_sample=False, **mode)
            assert torch.equal(got.cpu(), expected), mode
        for mode in [dict(top_k=5), dict(top_p=0.9, temperature=0.7), dict(num_beams=3)]:
            assert ours.generate(prompt.to("maca"), max_new_tokens=4, do_sample=True, **mode).shape == (1, 7)
        """,
        MACA_FALLBACK="error",
    )


def test_static_caches_compile_whole() -> None:
    run_python(
        """
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                                             bos_token_id=0, eos_token_id=1, pad_token_id=1)).eval()
        prompt, options = torch.tensor([[3, 4, 5, 6]]), dict(max_new_tokens=12, do_sample=False)
        want = model.generate(prompt, **options)
        model.to("maca").forward = torch.compile(model.forward, fullgraph=True)
        assert torch.equal(model.generate(prompt.to("maca"), cache_implementation="static", **options).cpu(), want)
        """,
        MACA_FALLBACK="error",
    )


def test_pipelines_take_the_device() -> None:
    run_python(
        """
        import torch
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, pipeline
        words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(64)}, unk_token="w2"))
        words.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w1", eos_token="w1", unk_token="w2")
        config = GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=1)
        for device, expected in [("maca", "maca"), (None, "maca"), (0, "maca"), ("cpu", "cpu"), (-1, "cpu")]:
            speak = pipeline("text-generation", model=GPT2LMHeadModel(config), tokenizer=tokenizer, device=device)
            assert speak.model.device.type == expected, device
            assert "w3" in speak("w3 w4", max_new_tokens=4)[0]["generated_text"]
        """
    )


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed", "bf16-true"])
def test_lightning_trains_with_callbacks(precision: str) -> None:
    run_python(
        """
        import sys, tempfile, torch, lightning
        from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
        class Classifier(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 2)
                self.products = set()
            def training_step(self, batch, index):
                hidden = self.first(batch[0])
                self.products.add((hidden.device.type, hidden.dtype))
                return torch.nn.functional.cross_entropy(self.last(hidden.relu()).float(), batch[1])
            def validation_step(self, batch, index):
                hidden = self.first(batch[0]).relu()
                self.log("loss", torch.nn.functional.cross_entropy(self.last(hidden).float(), batch[1]))
            def configure_optimizers(self):
                return torch.optim.AdamW(self.parameters())
        loader = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(torch.rand(16, 8), torch.arange(16) % 2), batch_size=4)
        precision, folder, model = sys.argv[1], tempfile.mkdtemp(), Classifier()
        trainer = lightning.Trainer(accelerator="auto", precision=precision, max_epochs=2, logger=False,
            enable_progress_bar=False, callbacks=[ModelCheckpoint(folder, monitor="loss"), EarlyStopping("loss")])
        trainer.fit(model, loader, loader)
        dtype = {"3": torch.float32, "b": torch.bfloat16, "1": torch.float16}[precision[0]]
        assert model.products == {("maca", dtype)}, model.products
        assert precision != "16-mixed" or trainer.precision_plugin.scaler.is_enabled()
        trainer.validate(model, loader, ckpt_path="best", verbose=False)
        fabric = lightning.Fabric(accelerator="maca", precision=precision)
        network, optimizer = fabric.setup(net := torch.nn.Linear(8, 2), torch.optim.SGD(net.parameters(), 0.1))
        fabric.backward(network(torch.rand(2, 8, device=fabric.device)).float().sum())
        optimizer.step()
        assert net.weight.device.type == "maca"
        """,
        precision,
        MACA_FALLBACK="error",
    )


QUANTIZED = """
import sys, torch, torchao.quantization as torchao
def outcome(device, quantized_on):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 32)).to(quantized_on)
    x = torch.randn(16, 64)
    name, *bits = sys.argv[1:]
    torchao.quantize_(model, getattr(torchao, name)(*[getattr(torch, b) for b in bits]))
    model.to(device)
    assert type(model[0].weight).__name__.endswith("Tensor") and model[0].weight.qdata.device.type == device
    with torch.no_grad():
        found = model(x.to(device)).cpu()
        if device == "maca":
            compiled = torch.compile(model, fullgraph=True)(x.to(device)).cpu()
            assert (compiled - found).abs().max() <= 1e-6 * found.abs().max()
        return found
host = outcome("cpu", "cpu")
for where in ("maca", "cpu"):
    assert (outcome("maca", where) - host).abs().max() <= 1e-5 * host.abs().max()
"""


# Int4WeightOnlyConfig packs for the matrix units of GPUs alone; IntxWeightOnlyConfig is torchao's for all devices.
@pytest.mark.parametrize(
    "config",
    [
        ["Int8WeightOnlyConfig"],
        ["Int8DynamicActivationInt8WeightConfig"],
        ["Float8WeightOnlyConfig"],
        ["IntxWeightOnlyConfig", "int4"],
    ],
    ids=lambda c: "-".join(c),
)
def test_torchao_quantizes_as_on_the_host(config: list[str]) -> None:
    run_python(QUANTIZED, *config, MACA_FALLBACK="error")


@pytest.mark.parametrize("start", ["gaussian", "pissa", "olora", "orthogonal", "mica", "dora"])
def test_peft_trains_as_on_the_host(start: str) -> None:
    run_python(
        """
        import sys, torch
        from peft import LoraConfig, get_peft_model
        start = sys.argv[1]
        options = dict(use_dora=True) if start == "dora" else dict(init_lora_weights=start)
        def losses(device):
            torch.manual_seed(0)
            base = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8)).to(device)
            model = get_peft_model(base, LoraConfig(r=4, target_modules=["0", "2"], **options))
            inputs, labels = torch.randn(64, 16).to(device), (torch.arange(64) % 8).to(device)
            optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), 0.1)
            for _ in range(4):
                loss = torch.nn.functional.cross_entropy(model(inputs), labels)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                yield loss.item()
            merged = model.merge_and_unload()
            yield torch.nn.functional.cross_entropy(merged(inputs), labels).item()
        host, ours = list(losses("cpu")), list(losses("maca"))
        assert host[-1] < host[0], host
        assert torch.allclose(torch.tensor(ours), torch.tensor(host), rtol=1e-5), (ours, host)
        """,
        start,
        MACA_FALLBACK="error",
    )


def test_torchtune_trains_as_on_the_host(older_torchao: str) -> None:
    # the weights it starts with
    program = "import torch; torch.manual_seed(0)\n" + TUNE.rpartition("print(sorted(")[0] + "print(steps)"
    for old, new in [
        ("lora_finetune_single_device", "full_finetune_single_device"),
        ("1B_lora", "1B_full"),
        (
            "lora_llama3_2 model.lora_rank=4",
            "llama3_2 optimizer._component_=torch.optim.AdamW optimizer.lr=0.01",
        ),
        ("dtype=bf16", "dtype=fp32 seed=0 optimizer_in_bwd=False log_peak_memory_stats=True"),
    ]:
        assert old in program
        program = program.replace(old, new)
    environment = {"PYTHONPATH": older_torchao, "MACA_FALLBACK": "error"}
    ours = run_python(program, **environment).stdout.splitlines()[-1]
    host = run_python(program.replace("device=maca", "device=cpu"), **environment).stdout.splitlines()[-1]
    found, expected = (list(map(float, re.findall(r"loss:([0-9.]+)", line))) for line in (ours, host))
    assert len(found) == 3 and expected[2] < expected[0]
    assert found == pytest.approx(expected, rel=1e-5)


def test_torchtitan_computes_as_on_the_host() -> None:
    program, _, end = TITAN.partition("print(trainer.device")
    run_python(
        program
        + """
from torch.nn.attention import flex_attention as flex
from torchtitan.models.common import attention

def logits(model, device):
    tokens = (torch.arange(128) % 11).reshape(2, 64).to(device)
    positions = (torch.arange(128) % 16).reshape(2, 64).to(device)
    masks = model.get_attention_masks(positions=positions)
    with torch.no_grad():
        return model(tokens, positions=positions, attention_masks=masks).float().cpu()

(trained,) = trainer.model_parts
trained._skip_lm_head = False
ours = logits(trained, "maca")
host = config.model_spec.model.build()
host.init_weights()
host.load_state_dict({name: value.full_tensor().cpu() for name, value in trained.state_dict().items()})
# what is compiled for the trained model is taken operator by operator here
attention._compiled_create_block_mask = flex.create_block_mask
attention.FlexAttention._compiled_flex_attn = staticmethod(flex.flex_attention)
expected = logits(host, "cpu")
# torchtitan's FSDP computes in bfloat16
assert (ours - expected).abs().max() <= 2e-2 * expected.abs().max(), (ours - expected).abs().max()
""",
        MACA_FALLBACK="error",
    )


def test_torchtitan_trains_on_two_ranks(tmp_path: Path) -> None:
    environment, _, program = TITAN.partition("if not hasattr")
    start, _, _ = environment.partition("os.environ")
    sharded = "config = llama3_debugmodel()\nconfig.parallelism.spmd_backend = 'partial_dtensor'\n"
    program = start + "if not hasattr" + program.replace("config = llama3_debugmodel()\n", sharded)
    (tmp_path / "train.py").write_text(program)
    printed = run_python(
        "import sys; from torch.distributed.run import main; main(sys.argv[1:])",
        "--standalone",
        "--nproc-per-node=2",
        str(tmp_path / "train.py"),
        MACA_FALLBACK="error",
        OMP_NUM_THREADS="1",
    ).stdout.splitlines()
    assert printed.count("maca:0 3") == 2, printed
