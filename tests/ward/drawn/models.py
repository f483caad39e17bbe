"""Models: each gives the network and the table, the same on all ranks, of its inputs."""

from tests.ward.drawn.part import Part


def _model(name: str, table: str, layers: str, forward: str) -> Part:
    network = f"""
table = {table[:-1]}, generator=torch.Generator().manual_seed(7))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
{layers}
        [[extra]]

    def forward(self, $inputs):
        [[forward]]
        return {forward}
"""
    return Part(name=name, slots={"network": network})


MODELS = (
    _model(
        "perceptron",
        "torch.rand(256, 32, 64)",
        """        layers = [nn.Linear(64, $width), nn.GELU()]
        for _ in range($depth):
            layers += [nn.Linear($width, $width), nn.GELU()]
        self.layers = nn.Sequential(*layers, nn.Linear($width, 10))""",
        "self.layers($inputs).mean(1)",
    ),
    _model(
        "convolutional net",
        "torch.rand(128, 3, 24, 24)",
        """        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range($depth))
        self.head = nn.Linear(16, 10)
        self.body = nn.Sequential(self.stem, nn.ReLU(), *self.blocks)""",
        "self.head(self.body($inputs).mean((2, 3)))",
    ),
    _model(
        "transformer",
        "torch.randint(0, 500, (256, 24))",
        """        self.embed = nn.Embedding(500, 64)
        layer = nn.TransformerEncoderLayer(64, 4, $width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, $depth, enable_nested_tensor=False)
        self.head = nn.Linear(64, 10)""",
        "self.head(self.encoder(self.embed($inputs)).mean(1))",
    ),
    _model(
        "model with two heads",
        "torch.rand(256, 32, 64)",
        """        body = [nn.Linear(64, $width), nn.Tanh()]
        for _ in range($depth):
            body += [nn.Linear($width, $width), nn.Tanh()]
        self.body = nn.Sequential(*body)
        self.first, self.second = nn.Linear($width, 10), nn.Linear($width, 10)""",
        "self.first(shared := self.body($inputs).mean(1)) + self.second(shared)",
    ),
    _model(
        "bag of words",
        "torch.randint(0, 300, (512, 32))",
        """        self.words = nn.Embedding(300, $width)
        mix = [nn.Linear($width, $width) for _ in range($depth)]
        self.mix = nn.Sequential(*mix, nn.ReLU(), nn.Linear($width, 10))""",
        "self.mix(self.words($inputs)).mean(1)",
    ),
)
