"""The programs of docs/packages.md, and what else its packages do on maca. A part of `make long`:

.venv/bin/pip install -r tests/packages/requirements.txt
.venv/bin/python -m pytest -n0 tests/packages/programs.py
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from running import ROOT, run_python

PAGE = (ROOT / "docs" / "packages.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_documented_programs_print_what_is_shown(program: str) -> None:
    shown = re.findall(r"print\(.*\)  # (.*)", program)
    printed = run_python(program, MACA_FALLBACK="error").stdout.splitlines()
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
