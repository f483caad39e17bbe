"""Fine-tune a small BERT of random weights with the Trainer of transformers."""

import argparse
import tempfile
import time

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


class Reviews(Dataset):
    def __init__(self, count, length, read_ms):
        self.tokens = torch.randint(5, 300, (count, length))
        self.read_ms = read_ms

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        if self.read_ms:
            time.sleep(self.read_ms / 1000)
        tokens = self.tokens[index]
        return {
            "input_ids": tokens,
            "attention_mask": torch.ones_like(tokens),
            "labels": tokens.sum() % 2,
        }


class Rate(TrainerCallback):
    def __init__(self):
        self.started = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % 10 == 0 and state.is_world_process_zero:
            now = time.perf_counter()
            print(f"step {state.global_step}: {10 / (now - self.started):.2f} steps/s", flush=True)
            self.started = now


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-steps", type=int, default=400)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--read-ms", type=float, default=0.0)
    parser.add_argument("--save-steps", type=int, default=0)
    parser.add_argument("--find-unused-parameters", action="store_true")
    parser.add_argument("--gradient-accumulation-steps", type=int, default=1)
    return parser.parse_args()


def main():
    args = parse()
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=300,
        hidden_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=192,
        max_position_embeddings=64,
    )
    with tempfile.TemporaryDirectory() as folder:
        training = TrainingArguments(
            output_dir=folder,
            max_steps=args.max_steps,
            per_device_train_batch_size=args.batch_size,
            gradient_accumulation_steps=args.gradient_accumulation_steps,
            dataloader_num_workers=args.num_workers,
            ddp_find_unused_parameters=args.find_unused_parameters,
            save_strategy="steps" if args.save_steps else "no",
            save_steps=args.save_steps or 500,
            logging_steps=100,
            report_to="none",
            use_cpu=True,
            ddp_backend="gloo",
            disable_tqdm=True,
        )
        Trainer(
            model=BertForSequenceClassification(config),
            args=training,
            train_dataset=Reviews(8000, 64, args.read_ms),
            callbacks=[Rate()],
        ).train()


if __name__ == "__main__":
    main()
