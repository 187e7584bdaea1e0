"""Trains the demo model from text of its own grammar.

`python -m tools.demo_model.train --out DIR --minutes 18` writes a Hugging Face model directory (Llama
architecture, bfloat16 safetensors), then asks the written model the questions of `probe.py`. The last line is
the verdict; a figure under its threshold makes the exit status 1.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from tools.demo_model import probe
from tools.demo_model.text import (
    BEGIN,
    CHAT_TEMPLATE,
    END,
    PAD,
    VOCABULARY_SIZE,
    Rows,
    token_id,
    train_tokenizer,
)

TOKENS_PER_STEP = 4096
# Windows by step: a fifth of the time goes to 2,048-token rows, slower per token than 512-token rows.
WINDOWS = (512, 512, 512, 512, 512, 512, 2048)
LONGEST_WINDOW, LONGEST_EVERY = 4096, 49
COPY_PHASE = 0.3
WARMUP = 0.03
FINAL_RATE = 0.03


@dataclass(frozen=True)
class Settings:
    """What one training run needs; it ends after `steps` if given, else after `minutes`."""

    out: Path
    minutes: float
    steps: int | None
    seed: int
    threads: int
    peak_rate: float


@dataclass(frozen=True)
class TrainingRun:
    """What a training run did."""

    steps: int
    tokens: int
    seconds: float
    answer_loss: float
    all_loss: float


def model_config(tokenizer: Tokenizer) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        attention_bias=False,
        mlp_bias=False,
        bos_token_id=token_id(tokenizer, BEGIN),
        eos_token_id=token_id(tokenizer, END),
        pad_token_id=token_id(tokenizer, PAD),
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )


def learning_rate(progress: float, peak: float) -> float:
    """Linear warm-up, then a cosine down to `FINAL_RATE` of the peak. `progress` runs from 0 to 1."""
    if progress < WARMUP:
        return peak * (0.02 + 0.98 * progress / WARMUP)
    turn = min(1.0, (progress - WARMUP) / (1 - WARMUP))
    return peak * (FINAL_RATE + (1 - FINAL_RATE) * 0.5 * (1 + math.cos(math.pi * turn)))


def window_of(step: int) -> int:
    return LONGEST_WINDOW if step % LONGEST_EVERY == LONGEST_EVERY - 1 else WINDOWS[step % len(WINDOWS)]


def token_losses(model: Callable[..., Any], ids: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of every predicted token, flat, float32."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    return functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")


def compiled(losses: Callable[..., torch.Tensor], model: LlamaForCausalLM) -> Callable[..., torch.Tensor]:
    """`losses` compiled for the two common windows: 1.7 times the speed where there is a C++ compiler."""
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        return losses
    started = time.monotonic()
    quick: Callable[..., torch.Tensor] = torch.compile(losses, dynamic=False)
    for window in sorted(set(WINDOWS)):
        ids = torch.ones(TOKENS_PER_STEP // window, window + 1, dtype=torch.long)
        quick(model, ids).mean().backward()  # type: ignore[no-untyped-call]
        model.zero_grad(set_to_none=True)
    print(f"compiled in {time.monotonic() - started:.0f} s", flush=True)
    return quick


def optimizer_of(model: LlamaForCausalLM, rate: float) -> torch.optim.AdamW:
    """Matrices decay, norms do not."""
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    norms = [weight for weight in model.parameters() if weight.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=True)


def train(model: LlamaForCausalLM, tokenizer: Tokenizer, settings: Settings) -> TrainingRun:
    rows = Rows(tokenizer, settings.seed + 1)
    optimizer = optimizer_of(model, settings.peak_rate)
    quick_losses = compiled(token_losses, model) if settings.minutes >= 5 else token_losses
    started = time.monotonic()
    step, shown, progress, smooth = 0, -1e9, 0.0, 0.0
    while progress < 1:
        elapsed = time.monotonic() - started
        window = window_of(step)
        count = TOKENS_PER_STEP // window
        copying = progress < COPY_PHASE
        batch = rows.batch(count, window, copy_rows=count // 8 if copying else 0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(progress, settings.peak_rate)
        weight = torch.from_numpy(batch.weight).flatten()
        losses = (quick_losses if window in WINDOWS else token_losses)(model, torch.from_numpy(batch.ids))
        loss = (losses * weight).sum() / weight.sum()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        smooth = loss.item() if step == 0 else 0.95 * smooth + 0.05 * loss.item()
        step += 1
        elapsed = time.monotonic() - started
        progress = step / settings.steps if settings.steps else elapsed / (settings.minutes * 60)
        if elapsed - shown >= 10 or progress >= 1:
            shown = elapsed
            eta = elapsed / progress - elapsed
            rate = step * TOKENS_PER_STEP / elapsed
            print(f"step {step:5d}  loss {smooth:.3f}  {rate:6.0f} tokens/s  eta {eta:5.0f} s", flush=True)
    answer_loss, all_loss = validate(model, tokenizer)
    return TrainingRun(step, step * TOKENS_PER_STEP, time.monotonic() - started, answer_loss, all_loss)


@torch.no_grad()
def validate(model: LlamaForCausalLM, tokenizer: Tokenizer) -> tuple[float, float]:
    """Mean loss over tokens of answers and over all tokens, on chats of a seed never trained on."""
    rows = Rows(tokenizer, 2**31)
    batches = [rows.batch(8, 512) for _ in range(12)]
    losses = torch.cat([token_losses(model, torch.from_numpy(batch.ids)) for batch in batches])
    answered = torch.cat([torch.from_numpy(batch.weight).flatten() == 1 for batch in batches])
    return losses[answered].mean().item(), losses.mean().item()


def write_model(model: LlamaForCausalLM, tokenizer: Tokenizer, out: Path) -> None:
    """The whole model directory, file by file put in place by rename."""
    out.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".demo-", dir=out.parent))
    try:
        weights = {name: value.to(torch.bfloat16).contiguous() for name, value in model.state_dict().items()}
        weights.pop("lm_head.weight", None)
        save_file(weights, made / "model.safetensors", metadata={"format": "pt"})
        tokenizer.save(str(made / "tokenizer.json"))
        (made / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
        for name, content in settings_files(model.config).items():
            (made / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        for path in made.iterdir():
            os.chmod(path, 0o644)
            os.replace(path, out / path.name)
    finally:
        shutil.rmtree(made)


def settings_files(config: LlamaConfig) -> dict[str, dict[str, object]]:
    tokens = {
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_id,
        "pad_token_id": config.pad_token_id,
    }
    return {
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": config.vocab_size,
            "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size,
            "num_hidden_layers": config.num_hidden_layers,
            "num_attention_heads": config.num_attention_heads,
            "num_key_value_heads": config.num_key_value_heads,
            "head_dim": config.head_dim,
            "hidden_act": config.hidden_act,
            "max_position_embeddings": config.max_position_embeddings,
            "rms_norm_eps": config.rms_norm_eps,
            "rope_theta": 10000.0,
            "rope_scaling": None,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "mlp_bias": False,
            "tie_word_embeddings": True,
            "initializer_range": config.initializer_range,
            "use_cache": True,
            "torch_dtype": "bfloat16",
            **tokens,
        },
        "generation_config.json": {**tokens, "do_sample": True, "temperature": 0.7, "top_p": 0.95},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": config.max_position_embeddings,
            "bos_token": BEGIN,
            "eos_token": END,
            "pad_token": PAD,
            "clean_up_tokenization_spaces": False,
            "model_input_names": ["input_ids", "attention_mask"],
        },
    }


def parse(arguments: list[str]) -> Settings:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="model directory to write")
    parser.add_argument("--minutes", type=float, default=18.0, help="training time")
    parser.add_argument("--steps", type=int, help="train this many steps instead, the same on every machine")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peak-rate", type=float, default=3e-3)
    return Settings(**vars(parser.parse_args(arguments)))


def main(arguments: list[str]) -> int:
    settings = parse(arguments)
    torch.set_num_threads(settings.threads)
    torch.manual_seed(settings.seed)
    tokenizer = train_tokenizer(settings.seed)
    model = LlamaForCausalLM(model_config(tokenizer))
    print(f"{sum(weight.numel() for weight in model.parameters()):,} parameters", flush=True)
    run = train(model, tokenizer, settings)
    write_model(model, tokenizer, settings.out)
    print(
        f"trained {run.steps} steps, {run.tokens:,} tokens in {run.seconds:.0f} s; "
        f"validation loss {run.answer_loss:.3f} (answers), {run.all_loss:.3f} (all tokens)"
    )
    return 1 if probe.run(settings.out, run.answer_loss) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
