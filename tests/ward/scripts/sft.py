"""Supervised fine-tuning of a tiny Llama with TRL, by LoRA adapters of PEFT where asked."""

import argparse
import os
import tempfile
import time

import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback
from trl import SFTConfig, SFTTrainer


def collate(rows):
    tokens = torch.stack([row["input_ids"] for row in rows])
    mask = torch.ones_like(tokens)
    return {"input_ids": tokens, "labels": tokens.clone(), "attention_mask": mask}


def dialogues(count, length, read_ms):
    def read(rows):
        time.sleep(read_ms / 1000 * len(rows["number"]))
        drawn = [torch.Generator().manual_seed(number) for number in rows["number"]]
        return {"input_ids": [torch.randint(5, 400, (length,), generator=one) for one in drawn]}

    return Dataset.from_dict({"number": list(range(count))}).with_transform(read)


class Rate(TrainerCallback):
    def __init__(self, args):
        self.args, self.rank = args, int(os.environ.get("RANK", "0"))
        self.started = time.perf_counter()

    def on_step_begin(self, args, state, control, **kwargs):
        if self.rank == self.args.slow_rank:
            time.sleep(self.args.extra_ms / 1000)
        if self.rank == 1 and state.global_step == self.args.bad_step:
            raise ValueError("the reward table has no such row")

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % 10 == 0 and state.is_world_process_zero:
            now = time.perf_counter()
            print(f"step {state.global_step}: {10 / (now - self.started):.2f} steps/s", flush=True)
            self.started = now


class Tuner(SFTTrainer):
    def _prepare_dataset(self, dataset, *args, **kwargs):
        return dataset  # it reads tokens


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-steps", type=int, default=400)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--read-ms", type=float, default=0.0)
    parser.add_argument("--slow-rank", type=int)
    parser.add_argument("--extra-ms", type=float, default=0.0)
    parser.add_argument("--bad-step", type=int)
    parser.add_argument("--lora", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=400,
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
    )
    model = LlamaForCausalLM(config)
    if args.lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))
    with tempfile.TemporaryDirectory() as folder:
        training = SFTConfig(
            output_dir=folder,
            max_steps=args.max_steps,
            per_device_train_batch_size=8,
            dataloader_num_workers=args.num_workers,
            save_strategy="no",
            logging_steps=100,
            report_to="none",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            ddp_backend="gloo",
            disable_tqdm=True,
            remove_unused_columns=False,
            ddp_find_unused_parameters=False,
        )
        Tuner(
            model=model,
            args=training,
            train_dataset=dialogues(8000, 48, args.read_ms),
            data_collator=collate,
            processing_class=tokenizer(),
            callbacks=[Rate(args)],
        ).train()


def tokenizer():
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"w{number}": number for number in range(400)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")),
        pad_token="w1",
        eos_token="w2",
    )


if __name__ == "__main__":
    main()
