"""Real architectures, from config with small random weights; nothing is downloaded.

Each function returns a model and what computes its loss.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

    Made = tuple[nn.Module, Callable[[], torch.Tensor]]


def build(config: str, model: str, **options: Any) -> nn.Module:
    """A model of transformers with random weights; nothing is downloaded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers = pytest.importorskip("transformers", reason="transformers is not installed")
        made: nn.Module = getattr(transformers, model)(getattr(transformers, config)(**options))
    return made


TEXT = torch.arange(12).view(2, 6) % 32
SMALL = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
}


class Double(nn.Sequential):
    """Convolution, normalisation, in-place activation; twice."""

    def __init__(self, before: int, after: int) -> None:
        layers: list[nn.Module] = []
        for channels in (before, after):
            layers += [nn.Conv2d(channels, after, 3, padding=1), nn.BatchNorm2d(after)]
            layers.append(nn.ReLU(inplace=True))
        super().__init__(*layers)


class UNet(nn.Module):
    """Down, across and up again, with skips between equal sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.bottom = Double(1, 4), Double(4, 8), Double(8, 8)
        self.pool = nn.MaxPool2d(2)
        self.raise_second = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.raise_first = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.join_second, self.join_first = Double(16, 8), Double(8, 4)
        self.head = nn.Conv2d(4, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.first(x)
        second = self.second(self.pool(first))
        x = self.raise_second(self.bottom(self.pool(second)))
        x = self.raise_first(self.join_second(torch.cat([x, second], 1)))
        return self.head(self.join_first(torch.cat([x, first], 1)))


def llama(checkpointing: str | bool) -> Made:
    """A decoder-only language model, with gradient checkpointing off and on."""
    model = build("LlamaConfig", "LlamaForCausalLM", num_key_value_heads=1, **SMALL)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": checkpointing == "reentrant"})
        model.enable_input_require_grads()
        model.config.use_cache = False
    return model, lambda: model(input_ids=TEXT, labels=TEXT).loss


def t5() -> Made:
    """An encoder-decoder, whose encoder's output every decoder layer reads."""
    model = build(
        "T5Config",
        "T5ForConditionalGeneration",
        vocab_size=32,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
    )
    return model, lambda: model(input_ids=TEXT, labels=TEXT).loss


def bert() -> Made:
    """An encoder."""
    model = build("BertConfig", "BertForMaskedLM", **SMALL)
    return model, lambda: model(input_ids=TEXT, labels=TEXT).loss


def vit() -> Made:
    """A vision transformer."""
    options = {k: v for k, v in SMALL.items() if k not in ("vocab_size", "max_position_embeddings")}
    model = build("ViTConfig", "ViTForImageClassification", image_size=8, patch_size=4, **options)
    images = torch.ones(2, 3, 8, 8)
    labels = torch.tensor([0, 1])
    return model, lambda: model(pixel_values=images, labels=labels).loss


def mixtral() -> Made:
    """A mixture of experts: which expert runs depends on the data."""
    model = build(
        "MixtralConfig",
        "MixtralForCausalLM",
        num_key_value_heads=1,
        num_local_experts=3,
        num_experts_per_tok=2,
        **SMALL,
    )
    return model, lambda: model(input_ids=TEXT, labels=TEXT).loss


def whisper() -> Made:
    """Speech to text: convolutions, an encoder and a decoder."""
    model = build(
        "WhisperConfig",
        "WhisperForConditionalGeneration",
        vocab_size=32,
        num_mel_bins=4,
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_source_positions=8,
        max_target_positions=8,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    features = torch.ones(2, 4, 16)
    return model, lambda: model(input_features=features, labels=TEXT).loss


def clip() -> Made:
    """Two towers, of text and of images, with one loss."""
    tower = {k: v for k, v in SMALL.items() if k not in ("vocab_size", "max_position_embeddings")}
    model = build(
        "CLIPConfig",
        "CLIPModel",
        projection_dim=8,
        text_config={**SMALL, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
        vision_config={**tower, "image_size": 8, "patch_size": 4},
    )
    images = torch.ones(2, 3, 8, 8)
    return model, lambda: model(input_ids=TEXT, pixel_values=images, return_loss=True).loss


def unet() -> Made:
    """A U-Net: a pool that is called twice, skips, in-place activations."""
    model = UNet()
    images = torch.ones(1, 1, 8, 8)
    return model, lambda: model(images).square().mean()


def timm() -> Made:
    """A convolutional network of timm's."""
    timm = pytest.importorskip("timm", reason="timm is not installed")
    model = timm.create_model("resnet10t", pretrained=False, num_classes=3)
    images = torch.ones(2, 3, 32, 32)
    return model, lambda: model(images).square().mean()


def lora() -> Made:
    """A language model with LoRA adapters of peft's on some of its layers, the rest frozen."""
    peft = pytest.importorskip("peft", reason="peft is not installed")
    base = build("LlamaConfig", "LlamaForCausalLM", num_key_value_heads=1, **SMALL)
    model = peft.get_peft_model(
        base, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    )
    return model, lambda: model(input_ids=TEXT, labels=TEXT).loss
