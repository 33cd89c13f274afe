"""Scripts of six public repositories, how each is started, and the synthetic data it gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import synthetic

# where the sources come from; each lies in a folder of its last name
REPOSITORIES = {
    "examples": ("github.com/pytorch/examples", "77f55b9"),
    "nanoGPT": ("github.com/karpathy/nanoGPT", "3adf61e"),
    "minGPT": ("github.com/karpathy/minGPT", "37baab7"),
    "pytorch-tutorial": ("github.com/yunjey/pytorch-tutorial", "0500d3d"),
    "PyTorch-GAN": ("github.com/eriklindernoren/PyTorch-GAN", "36d3c77"),
    "pytorch-cifar": ("github.com/kuangliu/pytorch-cifar", "49b7aa9"),
}


@dataclass(frozen=True)
class Script:
    """``path`` below the sources, started in ``folder`` (its own, if None) with ``arguments``.

    ``on_device`` and ``on_cpu`` are said on one alone. Of a data set there are ``samples``; after ``steps`` calls of
    backward the script is ended. ``before`` names scripts that leave what this one reads. ``tolerance`` of the first
    steps, where not 1e-3; ``scale`` is that of a GradScaler; ``compared`` losses count.
    ``imports`` are folders that it needs beside its own, ``python_path`` where Python looks for them, from ``folder``.
    """

    path: str
    arguments: str = ""
    on_device: str = ""
    on_cpu: str = ""
    prepare: Callable[[Path], None] = synthetic.nothing
    folder: str | None = None
    samples: int = 64
    steps: int = 10
    before: tuple[str, ...] = ()
    label: str = ""
    trains: bool = True
    imports: tuple[str, ...] = ()
    python_path: tuple[str, ...] = ()
    tolerance: float = 1e-3
    scale: float = 1.0
    compared: int = 5

    @property
    def name(self) -> str:
        return self.path + (f" {self.label}" if self.label else "")


def _gan(
    name: str,
    arguments: str = "",
    prepare: Callable[[Path], None] = synthetic.nothing,
    samples: int = 32,
    **rest: object,
) -> Script:
    return Script(
        f"PyTorch-GAN/implementations/{name}",
        arguments,
        prepare=prepare,
        samples=samples,
        compared=10,
        **rest,
    )  # type: ignore[arg-type]


_MNIST = "--n_epochs 2 --batch_size 8 --sample_interval 2"
_PAIRS = "--n_epochs 2 --dataset_name tiny --batch_size 2 --n_cpu 0 --img_height 64 --img_width 64 --sample_interval 1 --checkpoint_interval 1"
_FACES = "--n_epochs 2 --dataset_name tiny --batch_size 2 --n_cpu 0"

GANS = (
    *(_gan(f"{name}/{name}.py", _MNIST) for name in (
        "aae", "acgan", "began", "bgan", "cgan", "dcgan", "dragan", "ebgan", "gan", "infogan", "lsgan", "relativistic_gan",
        "sgan", "softmax_gan", "wgan", "wgan_div", "wgan_gp")),
    _gan("bicyclegan/bicyclegan.py", _PAIRS, synthetic.pairs),
    _gan("ccgan/ccgan.py", _FACES + " --img_size 64 --mask_size 16 --sample_interval 2", synthetic.faces),
    _gan("cluster_gan/clustergan.py", "-n 1 -b 8"),
    _gan("cogan/cogan.py", _MNIST, synthetic.mnist_m),
    _gan("context_encoder/context_encoder.py", _FACES + " --sample_interval 2", synthetic.faces_of_4000),
    _gan("cyclegan/cyclegan.py", _PAIRS + " --decay_epoch 1 --n_residual_blocks 2", synthetic.pairs),
    _gan("discogan/discogan.py", _PAIRS, synthetic.pairs),
    _gan("dualgan/dualgan.py", "--n_epochs 2 --dataset_name tiny --batch_size 2 --n_cpu 0 --img_size 128 --n_critic 2 --sample_interval 1", synthetic.pairs),
    _gan("esrgan/esrgan.py", _FACES + " --hr_height 64 --hr_width 64 --residual_blocks 2 --warmup_batches 2 --sample_interval 2 --decay_epoch 1", synthetic.faces),
    _gan("munit/munit.py", _PAIRS.replace("--batch_size 2", "--batch_size 1").replace("64", "128") + " --dim 16 --decay_epoch 1", synthetic.pairs),
    _gan("pix2pix/pix2pix.py", _PAIRS.replace("64", "256") + " --decay_epoch 1", synthetic.pairs),
    _gan("pixelda/pixelda.py", "--n_epochs 2 --batch_size 8 --sample_interval 2", synthetic.mnist_m),
    _gan("srgan/srgan.py", _FACES + " --hr_height 64 --hr_width 64 --sample_interval 2 --decay_epoch 1", synthetic.faces),
    _gan("stargan/stargan.py", _FACES + " --img_height 64 --img_width 64 --sample_interval 5 --residual_blocks 2 --decay_epoch 1", synthetic.faces_with_attributes),
    _gan("unit/unit.py", _PAIRS.replace("--batch_size 2", "--batch_size 1") + " --dim 16 --decay_epoch 1", synthetic.pairs),
)  # fmt: skip

EXAMPLES = (
    Script("examples/dcgan/main.py", "--dataset fake --workers 0 --batchSize 4 --imageSize 64 --ngf 8 --ndf 8 --niter 1 --manualSeed 1", "--accel"),
    Script("examples/fast_neural_style/neural_style/neural_style.py", "train --epochs 4 --batch-size 2 --dataset tiny/train --style-image style.jpg --save-model-dir out --image-size 64 --log-interval 1", "--accel", prepare=synthetic.styles, folder="examples/fast_neural_style", label="train"),
    Script("examples/fast_neural_style/neural_style/neural_style.py", "eval --content-image content.jpg --model m.pth --output-image out.jpg", "--accel", prepare=synthetic.style_model, folder="examples/fast_neural_style", label="eval", trains=False),
    Script("examples/gat/main.py", "--epochs 5 --dropout-p 0 --num-heads 1 --hidden-dim 8", prepare=synthetic.citations),
    Script("examples/gcn/main.py", "--epochs 6", prepare=synthetic.citations),
    Script("examples/imagenet/main.py", "tiny --epochs 2 -b 4 -j 0 -p 1 --gpu 0 --seed 1", prepare=synthetic.classes, steps=5),
    Script("examples/imagenet/main.py", "tiny --epochs 1 -b 4 -j 1 -p 1 -a squeezenet1_1", prepare=synthetic.classes, steps=3, label="without --gpu"),
    Script("examples/mnist/main.py", "--epochs 2 --batch-size 16 --save-model"),
    Script("examples/mnist_forward_forward/main.py", "--epochs 2 --train_size 32 --test_size 32 --save_model", steps=20),
    Script("examples/mnist_hogwild/main.py", "--epochs 1 --batch-size 16 --save_model", "--cuda", trains=False),
    Script("examples/mnist_rnn/main.py", "--epochs 2 --batch-size 16 --save-model", "--accel"),
    Script("examples/siamese_network/main.py", "--epochs 1 --batch-size 8 --lr 0.01 --save-model"),
    Script("examples/super_resolution/main.py", "--upscale_factor 3 --batchSize 2 --testBatchSize 2 --nEpochs 2 --threads 0 --lr 0.001", "--accel", prepare=synthetic.segments),
    Script("examples/super_resolution/super_resolve.py", "--input_image dataset/BSDS300/images/test/0.jpg --model model_epoch_2.pth --output_filename out.png", "--accel", prepare=synthetic.segments, before=("examples/super_resolution/main.py",), trains=False),
    Script("examples/vae/main.py", "--epochs 2 --batch-size 16", prepare=lambda folder: (folder / "results").mkdir(exist_ok=True)),
    *(Script("examples/word_language_model/main.py", f"--model {kind} --emsize 32 --nhid 32 --epochs 1 --dropout 0 --batch_size 4 --bptt 10 --log-interval 4", "--accel", prepare=synthetic.texts, label=kind)
      for kind in ("LSTM", "GRU", "RNN_TANH", "RNN_RELU", "Transformer")),
    Script("examples/word_language_model/generate.py", "--words 20", "--accel", prepare=synthetic.texts, before=("examples/word_language_model/main.py LSTM",), trains=False),
)  # fmt: skip

_TUTORIAL = "pytorch-tutorial/tutorials"
_CAPTIONS = "--embed_size 32 --hidden_size 32"
TUTORIAL = (
    Script(f"{_TUTORIAL}/01-basics/feedforward_neural_network/main.py", samples=200),
    Script(f"{_TUTORIAL}/02-intermediate/bidirectional_recurrent_neural_network/main.py", samples=200),
    Script(f"{_TUTORIAL}/02-intermediate/convolutional_neural_network/main.py", samples=200),
    Script(f"{_TUTORIAL}/02-intermediate/deep_residual_network/main.py", samples=200, steps=6),
    Script(f"{_TUTORIAL}/02-intermediate/language_model/main.py", prepare=synthetic.texts, steps=40),
    Script(f"{_TUTORIAL}/02-intermediate/recurrent_neural_network/main.py", samples=200),
    Script(f"{_TUTORIAL}/03-advanced/generative_adversarial_network/main.py", samples=200),
    Script(f"{_TUTORIAL}/03-advanced/image_captioning/train.py", _CAPTIONS + " --crop_size 64 --batch_size 4 --num_workers 0 --log_step 1 --save_step 2 --num_epochs 2", prepare=synthetic.captions, steps=6),
    Script(f"{_TUTORIAL}/03-advanced/image_captioning/sample.py", _CAPTIONS + " --image example.png --encoder_path encoder.ckpt --decoder_path decoder.ckpt", prepare=synthetic.caption_models, trains=False),
    Script(f"{_TUTORIAL}/03-advanced/neural_style_transfer/main.py", "--total_step 6 --log_step 1 --sample_step 3 --max_size 64", prepare=synthetic.styles_in_png),
    Script(f"{_TUTORIAL}/03-advanced/variational_autoencoder/main.py", samples=256),
    Script(f"{_TUTORIAL}/04-utils/tensorboard/main.py", samples=200),
)  # fmt: skip

_GPT = "--n_layer=2 --n_head=2 --n_embd=32 --block_size=32 --batch_size=4 --dataset=tiny"
_TRAIN = f"{_GPT} --gradient_accumulation_steps=2 --max_iters=5 --eval_iters=2 --eval_interval=3 --always_save_checkpoint=True"
_MINGPT = {"imports": ("minGPT/mingpt",), "python_path": ("../..",)}
GPTS = (
    Script("nanoGPT/train.py", _TRAIN + " --dtype=float32", on_cpu="--device=cpu --compile=False", prepare=synthetic.tokens),
    Script("nanoGPT/train.py", _TRAIN, on_cpu="--device=cpu --compile=False", prepare=synthetic.tokens, label="bfloat16", tolerance=1e-2),
    Script("nanoGPT/train.py", _TRAIN + " --dtype=float16 --compile=False", on_cpu="--device=cpu", prepare=synthetic.tokens, label="float16",
        scale=65536.0, tolerance=1e-2),
    Script("nanoGPT/sample.py", "--num_samples=2 --max_new_tokens=20 --dtype=float32", on_cpu="--device=cpu", prepare=synthetic.tokens, before=("nanoGPT/train.py",), trains=False),
    Script("minGPT/projects/adder/adder.py", "--data.ndigit=2 --model.model_type=gpt-nano --model.embd_pdrop=0 --model.resid_pdrop=0 --model.attn_pdrop=0 --trainer.max_iters=8 --trainer.num_workers=0", **_MINGPT),
    Script("minGPT/projects/chargpt/chargpt.py", "--model.model_type=gpt-nano --model.embd_pdrop=0 --model.resid_pdrop=0 --model.attn_pdrop=0 --trainer.max_iters=8 --trainer.batch_size=4 --trainer.num_workers=0", prepare=synthetic.texts, **_MINGPT),
    Script("pytorch-cifar/main.py", samples=8, steps=6),
)  # fmt: skip

SCRIPTS = (*EXAMPLES, *GPTS, *TUTORIAL, *GANS)
