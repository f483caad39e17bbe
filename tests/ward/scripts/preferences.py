"""DPO of TRL on a tiny Llama: pairs of a chosen and a rejected answer, with or without LoRA."""

import argparse
import os
import tempfile
import time

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    TrainerCallback,
)
from trl import DPOConfig, DPOTrainer
from trl.trainer.dpo_trainer import DataCollatorForPreference

WORDS = [f"w{n}" for n in range(300)]


def tokenizer():
    vocabulary = {word: n for n, word in enumerate(["<pad>", "<eos>", *WORDS])}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>", unk_token="w0"
    )


def pairs(count):
    def say(n):
        return " ".join(WORDS[(n * 7 + k) % 300] for k in range(12))

    return Dataset.from_list(
        [{"prompt": say(n), "chosen": say(n + 1), "rejected": say(n + 2)} for n in range(count)]
    )


class Collate(DataCollatorForPreference):
    """Looks up what the annotators wrote, pair by pair."""

    lookup_ms = 0.0

    def torch_call(self, examples):
        for _ in examples:
            time.sleep(self.lookup_ms / 1000)
        return super().torch_call(examples)


class Watch(TrainerCallback):
    def __init__(self, args):
        self.args, self.rank = args, int(os.environ.get("RANK", "0"))
        self.since = time.perf_counter()

    def on_step_begin(self, args, state, control, **kwargs):
        if self.rank == 1 and state.global_step == self.args.bad_step:
            raise KeyError("annotator 17")
        if self.rank == 1 and state.global_step == self.args.hung_step:
            time.sleep(100_000)

    def on_step_end(self, args, state, control, **kwargs):
        if self.rank == self.args.upload_rank:
            time.sleep(self.args.upload_ms / 1000)
        if state.global_step % 5 == 0 and state.is_world_process_zero:
            now = time.perf_counter()
            print(f"step {state.global_step}: {5 / (now - self.since):.2f} steps/s", flush=True)
            self.since = now


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-steps", type=int, default=400)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--lookup-ms", type=float, default=0.0)
    parser.add_argument("--upload-rank", type=int)
    parser.add_argument("--upload-ms", type=float, default=400.0)
    parser.add_argument("--bad-step", type=int)
    parser.add_argument("--hung-step", type=int)
    parser.add_argument("--lora", action="store_true")
    args = parser.parse_args()
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config = LlamaConfig(
        vocab_size=302, num_attention_heads=4, num_key_value_heads=4, pad_token_id=0, **sizes
    )
    words = tokenizer()
    collate = Collate(pad_token_id=0)
    collate.lookup_ms = args.lookup_ms
    peft_config = None
    if args.lora:
        from peft import LoraConfig

        peft_config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    with tempfile.TemporaryDirectory() as folder:
        DPOTrainer(
            model=LlamaForCausalLM(config),
            ref_model=None if args.lora else LlamaForCausalLM(config),
            args=DPOConfig(
                output_dir=folder,
                max_steps=args.max_steps,
                per_device_train_batch_size=8,
                gradient_accumulation_steps=args.accumulate,
                dataloader_num_workers=args.num_workers,
                save_strategy="no",
                report_to="none",
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                disable_tqdm=True,
                logging_steps=100,
            ),
            train_dataset=pairs(4000),
            processing_class=words,
            data_collator=collate,
            peft_config=peft_config,
            callbacks=[Watch(args)],
        ).train()
