"""The three networks in PyTorch, under the names that the trainer's weights carry; and safetensors in
a few lines, since Debian has no package of it. Peers and parity tests build on these."""
import json
import struct

import numpy as np
import torch
from torch import nn


class VGG11(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        layers, channels = [], 3
        for width in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0):
            if width:
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
                channels = width
            else:
                layers.append(nn.MaxPool2d(2))
        self.layers = nn.Sequential(*layers)
        self.fc1 = nn.Linear(512, classes)

    def forward(self, x):
        return self.fc1(self.layers(x).flatten(1))


class CBR(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.cbr = nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU())

    def forward(self, x):
        return self.cbr(x)


class Block(nn.Module):
    def __init__(self, i, o, dropout):
        super().__init__()
        self.layer1, self.layer2 = CBR(i, o), CBR(o, o)
        self.dropout = nn.Dropout(dropout)
        if i != o:
            self.scale = nn.Conv2d(i, o, 1)

    def forward(self, x):
        y = self.layer2(self.dropout(self.layer1(x)))
        return y + (self.scale(x) if hasattr(self, "scale") else x)


class WideResNet(nn.Module):
    def __init__(self, width=10, dropout=0.01, classes=10):
        super().__init__()
        self.input_block = CBR(3, 16)
        c = [16, 16 * width, 16 * width, 32 * width, 32 * width, 64 * width, 64 * width]
        for n in range(1, 7):
            setattr(self, f"block{n}", Block(c[n - 1], c[n], dropout))
        self.pool, self.average = nn.MaxPool2d(2), nn.AvgPool2d(7)
        self.fc = nn.Linear(64 * width, classes)

    def forward(self, x):
        x = self.block2(self.block1(self.input_block(x)))
        x = self.block4(self.block3(self.pool(x)))
        x = self.block6(self.block5(self.pool(x)))
        return self.fc(self.average(x).flatten(1))


class Group(nn.Module):
    def __init__(self, i, o, activation):
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(c, o, 3, padding=1, bias=False) for c in (i, o))
        self.norm1, self.norm2 = (nn.BatchNorm2d(o, eps=1e-12, momentum=0.4) for _ in range(2))
        self.pool, self.act = nn.MaxPool2d(2), activation()
        for conv in (self.conv1, self.conv2):
            nn.init.dirac_(conv.weight.data[: conv.in_channels])
        for norm in (self.norm1, self.norm2):
            norm.weight.requires_grad = False

    def forward(self, x):
        x = self.act(self.norm1(self.pool(self.conv1(x))))
        return self.act(self.norm2(self.conv2(x)))


class Scale(nn.Module):
    def forward(self, x):
        return x / 9


class SpeedNet(nn.Sequential):
    def __init__(self, widths=(64, 256, 256), activation="gelu", stem_bias=True, classes=10):
        act = nn.GELU if activation == "gelu" else nn.ReLU
        a, b, c = widths
        stem = nn.Conv2d(3, 24, 2)
        super().__init__(stem, act(), Group(24, a, act), Group(a, b, act), Group(b, c, act),
                         nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(c, classes, bias=False), Scale())
        stem.weight.requires_grad = False
        stem.bias.requires_grad = stem_bias
        nn.init.zeros_(stem.bias)

    def whiten(self, x):
        """Second moment of 2×2 patches (arXiv 2404.00498, section 3.1)."""
        patches = x.unfold(2, 2, 1).unfold(3, 2, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, 12).double()
        values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
        filters = (vectors / (values + 5e-4).sqrt()).T.flip(0).reshape(12, 3, 2, 2).float()
        self[0].weight.data[:] = torch.cat((filters, -filters))


def build(name, width=1, widths=(16, 64, 128), activation="gelu", stem_bias=True, dropout=0.0):
    if name == "vgg11":
        return VGG11()
    if name == "wideresnet":
        return WideResNet(width, dropout)
    return SpeedNet(widths, activation, stem_bias)


_DTYPES = {"F32": np.float32, "I64": np.int64, "I32": np.int32, "U8": np.uint8, "F64": np.float64}


def save_safetensors(path, tensors):
    header, blobs, at = {}, [], 0
    for name, value in tensors.items():
        value = np.asarray(value.detach().numpy() if torch.is_tensor(value) else value)
        blob = value.tobytes()
        dtype = next(k for k, v in _DTYPES.items() if v == value.dtype)
        header[name] = dict(dtype=dtype, shape=list(value.shape), data_offsets=[at, at + len(blob)])
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def load_safetensors(path):
    data = open(path, "rb").read()
    length = struct.unpack("<Q", data[:8])[0]
    out = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__":
            begin, end = (8 + length + o for o in entry["data_offsets"])
            flat = np.frombuffer(data[begin:end], _DTYPES[entry["dtype"]]).copy()
            out[name] = torch.from_numpy(flat.reshape(entry["shape"]))
    return out
