"""The fix that puts samples of like lengths into a batch, the same number on each rank."""

from __future__ import annotations

from ddoctor.analysis.framework_words import FrameworkWords
from ddoctor.models import Fix

LIKE_LENGTHS = '''\
class LikeLengths(torch.utils.data.Sampler):
    """Batches of like lengths: in each step, those of all ranks are neighbours by length."""

    def __init__(self, lengths, batch_size, rank, ranks):
        self.lengths, self.batch_size = torch.as_tensor(lengths), batch_size
        self.rank, self.ranks, self.epoch = rank, ranks, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.lengths) // (self.batch_size * self.ranks)

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.epoch)
        shuffled = torch.randperm(len(self.lengths), generator=generator)
        whole = len(self) * self.batch_size * self.ranks
        by_length = shuffled[self.lengths[shuffled].argsort(stable=True)][:whole]
        steps = by_length.view(len(self), self.ranks, self.batch_size)
        for step in torch.randperm(len(self), generator=generator):
            yield steps[step, self.rank].tolist()


loader = DataLoader(dataset, batch_sampler=LikeLengths(lengths, batch_size, rank, world_size))'''


def grouped(words: FrameworkWords, gain: str | None = None) -> Fix:
    """The fix in the words of the framework that has an option for it, else as a sampler."""
    if words.has("like_lengths"):
        return Fix.python(
            summary="group texts of similar length into the same step on all ranks",
            paste=words.written("like_lengths", ""),
            caution="makes the order a little less random",
            expected_gain=gain,
        )
    return Fix.python(
        summary="draw each batch from samples of like lengths, which all ranks share in each step",
        paste=LIKE_LENGTHS,
        caution="or pack texts into sequences of one length, without padding",
        expected_gain=gain,
    )
