"""GRPO of TRL on a tiny Llama: answers are sampled and scored in the loop."""

import argparse
import os
import tempfile
import time

from datasets import Dataset
from preferences import WORDS, tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-steps", type=int, default=400)
    parser.add_argument("--judge-ms", type=float, default=0.0, help="the judge, for each answer")
    parser.add_argument("--judge-rank", type=int, help="only this rank has a slow judge")
    parser.add_argument("--fail-at", type=int)
    parser.add_argument("--hang-at", type=int)
    return parser.parse_args()


class Judge:
    """Scores answers by a program that is far away."""

    __name__ = "judge"

    def __init__(self, args):
        self.args, self.rank, self.calls = args, int(os.environ.get("RANK", "0")), 0

    def __call__(self, prompts, completions, **kwargs):
        self.calls += 1
        if self.rank == 1 and self.calls == self.args.fail_at:
            raise ConnectionError("the judge does not answer")
        if self.rank == 1 and self.calls == self.args.hang_at:
            time.sleep(100_000)
        return [self.score(one) for one in completions]

    def score(self, answer):
        if self.args.judge_ms and self.args.judge_rank in (None, self.rank):
            time.sleep(self.args.judge_ms / 1000)
        return float(len(set(answer.split())))


class Steps(TrainerCallback):
    since = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        if state.is_world_process_zero and state.global_step % 5 == 0:
            now = time.perf_counter()
            print(f"step {state.global_step}: {5 / (now - self.since):.2f} steps/s", flush=True)
            self.since = now


def main():
    args = arguments()
    config = LlamaConfig(
        vocab_size=302,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        pad_token_id=0,
        eos_token_id=1,
    )
    questions = [" ".join(WORDS[(n + k) % 300] for k in range(8)) for n in range(2000)]
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=LlamaForCausalLM(config),
            reward_funcs=Judge(args),
            args=GRPOConfig(
                output_dir=folder,
                max_steps=args.max_steps,
                per_device_train_batch_size=4,
                num_generations=4,
                max_completion_length=8,
                save_strategy="no",
                report_to="none",
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                disable_tqdm=True,
                logging_steps=100,
            ),
            train_dataset=Dataset.from_dict({"prompt": questions}),
            processing_class=tokenizer(),
            callbacks=[Steps()],
        )
        trainer.train()


if __name__ == "__main__":
    main()
