# Trains an image classifier on one GPU, in the manner of the PyTorch ImageNet example.
import argparse
import os
import random
import tempfile
import time

import torch
import torch.backends.cudnn as cudnn
import torch.nn as nn
import torch.nn.parallel
import torch.optim
import torch.utils.data
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import Dataset

parser = argparse.ArgumentParser(description="ImageNet-style training")
parser.add_argument("--epochs", default=2, type=int, metavar="N")
parser.add_argument("-b", "--batch-size", default=32, type=int)
parser.add_argument("--lr", default=0.1, type=float, dest="lr")
parser.add_argument("--momentum", default=0.9, type=float)
parser.add_argument("--wd", default=1e-4, type=float, dest="weight_decay")
parser.add_argument("-j", "--workers", default=0, type=int)
parser.add_argument("-p", "--print-freq", default=4, type=int)
parser.add_argument("--seed", default=0, type=int)
parser.add_argument("--gpu", default=0, type=int, help="GPU id to use.")


class Blobs(Dataset):
    """Images of one bright quarter; the class says which."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.targets = torch.randint(4, (count,), generator=generator)
        self.images = 0.3 * torch.randn(count, 3, 16, 16, generator=generator)
        for image, target in zip(self.images, self.targets):
            row, column = divmod(int(target), 2)
            image[:, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] += 1

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return self.images[index], self.targets[index]


class BasicBlock(nn.Module):
    def __init__(self, inplanes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = None
        if stride != 1 or inplanes != planes:
            self.downsample = nn.Sequential(
                nn.Conv2d(inplanes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes)
            )

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, num_classes=4):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.layer1 = BasicBlock(8, 8)
        self.layer2 = BasicBlock(8, 16, stride=2)
        self.maxpool = nn.MaxPool2d(2)
        self.avgpool = nn.AdaptiveAvgPool2d((2, 2))
        self.fc = nn.Linear(16 * 4, num_classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = self.maxpool(self.layer2(self.layer1(self.stem(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class AverageMeter:
    """Computes and stores the average and current value"""

    def __init__(self, name, fmt=":f"):
        self.name, self.fmt = name, fmt
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count

    def __str__(self):
        return ("{name} {val" + self.fmt + "} ({avg" + self.fmt + "})").format(**self.__dict__)


def accuracy(output, target, topk=(1,)):
    """Computes the accuracy over the k top predictions for the specified values of k"""
    with torch.no_grad():
        maxk = max(topk)
        _, pred = output.topk(maxk, 1, True, True)
        correct = pred.t().eq(target.view(1, -1).expand_as(pred.t()))
        return [correct[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / target.size(0)) for k in topk]


def train(loader, model, criterion, optimizer, epoch, args, losses):
    batch_time, meter, top1 = AverageMeter("Time", ":6.3f"), AverageMeter("Loss", ":.4e"), AverageMeter("Acc@1", ":6.2f")
    model.train()
    end = time.time()
    for i, (images, target) in enumerate(loader):
        if torch.cuda.is_available():
            images = images.cuda(args.gpu, non_blocking=True)
            target = target.cuda(args.gpu, non_blocking=True)
        output = model(images)
        loss = criterion(output, target)
        acc1, _ = accuracy(output, target, topk=(1, 2))
        meter.update(loss.item(), images.size(0))
        top1.update(acc1[0].item(), images.size(0))
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        batch_time.update(time.time() - end)
        end = time.time()
        if i % args.print_freq == 0:
            print(f"Epoch: [{epoch}][{i}/{len(loader)}]\t{batch_time}\t{meter}\t{top1}")


def validate(loader, model, criterion, args):
    top1 = AverageMeter("Acc@1", ":6.2f")
    model.eval()
    with torch.no_grad():
        for images, target in loader:
            images = images.cuda(args.gpu, non_blocking=True)
            target = target.cuda(args.gpu, non_blocking=True)
            assert images.is_cuda and target.is_cuda
            top1.update(accuracy(model(images), target)[0].item(), images.size(0))
    print(f" * Acc@1 {top1.avg:.3f}")
    return top1.avg


def main():
    args = parser.parse_args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.cuda.manual_seed_all(args.seed)
    cudnn.benchmark = True
    assert torch.cuda.is_available() and torch.cuda.device_count() >= 1
    torch.cuda.set_device(args.gpu)
    print(f"Use GPU: {args.gpu} ({torch.cuda.get_device_name(args.gpu)}) for training")

    model = ResNet()
    model = model.cuda(args.gpu)
    criterion = nn.CrossEntropyLoss().cuda(args.gpu)
    optimizer = torch.optim.SGD(
        model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.weight_decay
    )
    scheduler = StepLR(optimizer, step_size=30, gamma=0.1)
    loaders = [
        torch.utils.data.DataLoader(
            Blobs(count, seed), batch_size=args.batch_size, shuffle=count > 128, num_workers=args.workers,
            pin_memory=True,
        )
        for count, seed in ((384, 1), (128, 2))
    ]
    losses, best = [], 0.0
    for epoch in range(args.epochs):
        train(loaders[0], model, criterion, optimizer, epoch, args, losses)
        best = max(best, validate(loaders[1], model, criterion, args))
        scheduler.step()

    path = os.path.join(tempfile.mkdtemp(), "checkpoint.pth.tar")
    torch.save({"state_dict": model.state_dict(), "optimizer": optimizer.state_dict(), "best_acc1": best}, path)
    loc = "cuda:{}".format(args.gpu)  # map the checkpoint to the GPU given
    checkpoint = torch.load(path, map_location=loc)
    assert all(t.is_cuda for t in checkpoint["state_dict"].values())
    model.load_state_dict(checkpoint["state_dict"])
    print(f"max memory: {torch.cuda.max_memory_allocated() / 2**20:.1f} MiB")
    torch.cuda.empty_cache()
    return model, losses


if __name__ == "__main__":
    model, losses = main()
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
