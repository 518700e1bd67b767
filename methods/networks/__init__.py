"""Encoders and heads as plain constructors; an encoder maps images `[B, C, H, W]` to features `[B, encoder.dim]`."""

from methods.core.modules import Encoder, Frozen, batch_statistics, mlp
from methods.networks.convolutional import convnet, fixup_resnet20, normalisation, resnet18, resnet34, resnet50
from methods.networks.libraries import convnext_tiny, mobilenet_v3, timm, torchvision
from methods.networks.transformers import vit, vit_small, vit_tiny
