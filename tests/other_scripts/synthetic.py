"""Synthetic data of the shape that scripts look for, written where they look: each function gets the script's folder."""

from __future__ import annotations

import json
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

WORDS = (
    "the a one two man dog cat bird house tree runs sees finds takes over under with and then quickly".split()
)


def picture(path: Path, width: int, height: int, seed: int) -> None:
    """A photograph of gradients and noise."""
    draws = np.random.RandomState(seed)
    y, x = np.mgrid[0:height, 0:width]
    base = np.stack([x * 200 / width, y * 200 / height, (x + y) * 100 / (width + height)], -1)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((base + draws.randint(0, 56, base.shape)).astype(np.uint8)).save(path)


def text(words: int, seed: int = 0) -> str:
    """Lines of ten words."""
    draws = np.random.RandomState(seed)
    chosen = [WORDS[i] for i in draws.randint(0, len(WORDS), words)]
    return "\n".join(" ".join(chosen[i : i + 10]) for i in range(0, words, 10)) + "\n"


def nothing(folder: Path) -> None:
    """The script makes its own, or takes what within.py has put in torchvision."""


def pairs(folder: Path) -> None:
    """Two pictures side by side, as of pix2pix; and the folders A and B of CycleGAN."""
    root = folder / "../../data/tiny"
    for part in ("train", "val", "test"):
        for i in range(4 if part == "train" else 8):
            picture(root / part / f"{i}.jpg", 128, 64, i)
            picture(root / part / "A" / f"{i}.jpg", 64, 64, i)
            picture(root / part / "B" / f"{i}.jpg", 64, 64, i + 50)


def faces(folder: Path, count: int = 8, held_out: int = 0) -> Path:
    """Pictures in one folder, of which the script keeps the last ``held_out`` for tests."""
    root = folder / "../../data/tiny"
    for i in range(count):
        picture(root / f"{i:06}.jpg", 64, 64, i)
    for i in range(count, count + held_out):
        os.link(root / f"{i % count:06}.jpg", root / f"{i:06}.jpg")
    return root


def faces_of_4000(folder: Path) -> None:
    """As of CelebA."""
    faces(folder, held_out=4000)


def faces_with_attributes(folder: Path) -> None:
    """As of CelebA, with its list."""
    names = "Black_Hair Blond_Hair Brown_Hair Male Young".split()
    root = faces(folder, held_out=2000)
    draws = np.random.RandomState(0)
    lines = [f"{i:06}.jpg " + " ".join(draws.choice(["1", "-1"], len(names))) for i in range(2008)]
    (root / "list.txt").write_text("\n".join(["2008", " ".join(names), *lines]) + "\n")


def mnist_m(folder: Path) -> None:
    """MNIST-M, as its loaders keep it."""
    root = folder / "../../data/mnistm/processed"
    root.mkdir(parents=True)
    draws = torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 256, (64, 28, 28, 3), generator=draws, dtype=torch.uint8)
    for name in ("mnist_m_train.pt", "mnist_m_test.pt"):
        torch.save((pictures, torch.arange(64) % 10), root / name)


def classes(folder: Path) -> None:
    """Folders of classes, as of ImageNet."""
    for part in ("train", "val"):
        for i in range(16):
            picture(folder / "tiny" / part / str(i % 4) / f"{i}.jpg", 256, 256, i)


def styles(folder: Path) -> None:
    """For the transfer of styles: pictures of a class, one of a style, one of contents."""
    for i in range(4):
        picture(folder / "tiny/train/0" / f"{i}.jpg", 64, 64, i)
    picture(folder / "style.jpg", 64, 64, 9)
    picture(folder / "content.jpg", 64, 64, 10)


def style_model(folder: Path) -> None:
    """What neural_style.py eval loads: its own network as it is born."""
    styles(folder)
    code = "import torch, transformer_net as t; torch.manual_seed(0); torch.save(t.TransformerNet().state_dict(), 'm.pth')"
    _run_in(folder / "neural_style", code)
    os.rename(folder / "neural_style/m.pth", folder / "m.pth")


def _run_in(folder: Path, code: str) -> None:
    import subprocess
    import sys

    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)


def citations(folder: Path) -> None:
    """Cora's two files, and the archive of them: 1600 papers, as scripts keep 1500 for tests."""
    draws = np.random.RandomState(0)
    root = folder / "cora"
    root.mkdir()
    lines = ["\t".join([str(i), *map(str, draws.randint(0, 2, 24)), f"class{i % 7}"]) for i in range(1600)]
    (root / "cora.content").write_text("\n".join(lines) + "\n")
    cites = {(int(a), int(b)) for a, b in draws.randint(0, 1600, (3000, 2)) if a != b}
    (root / "cora.cites").write_text("".join(f"{a}\t{b}\n" for a, b in sorted(cites)))
    with tarfile.open(folder / "cora.tgz", "w:gz") as archive:
        archive.add(root, "cora")


def texts(folder: Path) -> None:
    """wikitext-2, and the text of minGPT, nanoGPT and the Penn treebank."""
    for name in ("train", "valid", "test"):
        path = folder / "data/wikitext-2" / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text(1500))
    (folder / "data/train.txt").write_text(text(4000))
    (folder / "input.txt").write_text("O God, O God!\n" + text(1000))


def tokens(folder: Path) -> None:
    """nanoGPT's files of characters."""
    root = folder / "data/tiny"
    root.mkdir(parents=True)
    characters = text(2000)
    names = sorted(set(characters) | {"\n", " "})
    ids = np.array([names.index(c) for c in characters], dtype=np.uint16)
    for name in ("train.bin", "val.bin"):
        ids.tofile(root / name)
    made = {
        "vocab_size": len(names),
        "itos": dict(enumerate(names)),
        "stoi": {c: i for i, c in enumerate(names)},
    }
    (root / "meta.pkl").write_bytes(pickle.dumps(made))


def captions(folder: Path) -> None:
    """Pictures and captions as of COCO, and the vocabulary that build_vocab.py makes."""
    pictures = [{"id": i, "file_name": f"{i}.jpg"} for i in range(12)]
    for i in range(12):
        picture(folder / "data/resized2014" / f"{i}.jpg", 80, 80, i)
    found = [{"id": i, "image_id": i, "caption": text(5 + i % 4, i).replace("\n", " ")} for i in range(12)]
    notes = folder / "data/annotations/captions_train2014.json"
    notes.parent.mkdir(parents=True)
    notes.write_text(json.dumps({"images": pictures, "annotations": found}))
    code = (
        "import sys, nltk; sys.path.insert(0, '.'); nltk.tokenize.word_tokenize = str.split\n"
        "import pickle, build_vocab\n"
        "pickle.dump(build_vocab.build_vocab('data/annotations/captions_train2014.json', 1), open('data/vocab.pkl', 'wb'))"
    )
    _run_in(folder, code)


def caption_models(folder: Path) -> None:
    """What sample.py loads: its networks as they are born."""
    captions(folder)
    code = """
import sys, pickle, torch, torchvision
sys.path.insert(0, '.')
torchvision.models._api.WeightsEnum.get_state_dict = lambda *_, **__: sys._getframe(1).f_locals['model'].state_dict()
import build_vocab, model
torch.manual_seed(0)
words = len(pickle.load(open('data/vocab.pkl', 'rb')))
torch.save(model.EncoderCNN(32).state_dict(), 'encoder.ckpt')
torch.save(model.DecoderRNN(32, 32, words, 1).state_dict(), 'decoder.ckpt')
"""
    _run_in(folder, code)
    picture(folder / "example.png", 80, 80, 0)


def styles_in_png(folder: Path) -> None:
    """A content and a style for neural_style_transfer."""
    picture(folder / "png/content.png", 64, 64, 0)
    picture(folder / "png/style.png", 64, 64, 1)


def segments(folder: Path) -> None:
    """BSDS300's folders."""
    for part in ("train", "test"):
        for i in range(8):
            picture(folder / "dataset/BSDS300/images" / part / f"{i}.jpg", 280, 280, i)
