"""What is a secret goes, whatever stands around it; all else stays as it is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from ddoctor.evidence import known_secrets
from ddoctor.evidence.host import Kernel
from ddoctor.evidence.redaction import beginning, end, redact, remember, text, words
from ddoctor.evidence.secret_forms import HIDDEN
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.software import Environment, Job, Variable
from tests.evidence.secret_kinds import DRAWN, KNOWN, LETTERS, SHORT
from tests.healthy import healthy

SITE = Path(pytest.__file__).parent.parent

ANYWHERE = (
    "{}",
    "login({!r})",
    "could not log in with {}, try again",
    "/data/{}/train.py",
    "https://hub/models?x={}&y=2",
    "{{'id': '{}'}}",
    "ValueError: {}.",
    "train.py {}",
    "\x1b[31m{}\x1b[0m",
    "https://hub/%20{}",
    r"b'first line\n{}'",
)
NAMED = (
    "password=b'{}'",
    "{{b'api_key': b'{}'}}",
    "Config(password=SecretStr('{}'), lr=1)",
    "Command '['train.py', '--hf-token', '{}']' returned non-zero exit status 1.",
    'cmd = "train.py --wandb-key {}"',
    "--hf-token\n{}",
    "auth=('me', '{}')",
    "requests.get(url, auth=HTTPBasicAuth('me', '{}'))",
    "api_key -> {}",
    "api_key := {}",
    "'api_key' => '{}'",
    "next?a=password%3D{}%26b",
    "<password>{}</password>",
    r"\u0022password\u0022:\u0022{}\u0022",
    "(--password) = {}",
    "password[0]={}",
    "+logger={{name:wandb,api_key:{}}}",
    "SharedAccessSignature={}",
    "https://host/geocode?key={}&x=1",
    "jwt={}",
    "wandb.login('{}')",
    "machine host login me password {}",
    "sshpass -p {} ssh host",
    "docker login -u me -p {} host",
    "redis-cli -h host -a {}",
    "mysql -u me -p{}",
    "wrong password '{}'",
    "--hf-token {}",
    "--wandb-key={}",
    "python train.py --wandb.api_key {} --lr 0.1",
    "password={}",
    "{{'password': '{}', 'user': 'me'}}",
    'api_key = "{}"',
    "AWS_SECRET_ACCESS_KEY={}",
    "access_token: {}",
    "Authorization: Bearer {}",
    "Authorization: token {}",
    'headers={{"X-Api-Key": "{}"}}',
    "https://me:{}@host/x",
    "postgresql://:{}@db:5432/runs",
    "https://hub/models?rev=1&access_token={}&y=2",
    "https://store/data?sv=2022-11-02&sig={}&se=2027",
    "Server=db;User=me;Password={};Database=runs",
    "AccountName=me;AccountKey={};EndpointSuffix=x",
    '"SecretAccessKey": "{}"',
    "clientSecret: {}",
    "dbpassword={}",
    'os.environ["HF_TOKEN"] = "{}"',
    "os.environ.setdefault('WANDB_API_KEY', '{}')",
    'api_key: str | None = "{}"',
    r"{{\"password\": \"{}\"}}",
    "invalid API key: {}",
    'wandb.login(host="https://hub", key="{}")',
    "curl -u me:{} https://host",
    "export COMET_KEY={}",
)
TWENTY = (
    "{}",
    "token of modal: ak-{}",
    'open(".kaggle/kaggle.json"): {{"username": "me", "key": "{}"}}',
    "aph0_{}.",
    "https://host/{}/x",
)
SPOKEN = (
    "the password is {}",
    "invalid token '{}'",
    "password {} was refused",
    "HF_TOKEN\t\tunset, API key {} is used",
    "Incorrect API key provided: {}, see the docs",
    "the password for me@host: {}",
    "bad API key ({})",
    "hf_token | {} |",
    "hf_token\t{}",
)


@pytest.mark.parametrize("kind", [*KNOWN, *DRAWN])
@pytest.mark.parametrize("around", ANYWHERE)
def test_a_form_is_enough(kind: str, around: str) -> None:
    random = Random(kind + around)
    for _ in range(20):
        secret = (KNOWN | DRAWN)[kind](random)
        told = text(around.format(secret))
        assert secret not in told
        assert HIDDEN in told


@pytest.mark.parametrize("kind", [*KNOWN, *DRAWN, *SHORT])
@pytest.mark.parametrize("around", NAMED)
def test_a_name_is_enough(kind: str, around: str) -> None:
    random = Random(kind + around)
    for _ in range(5):
        secret = (KNOWN | DRAWN | SHORT)[kind](random)
        told = text(around.format(secret))
        assert secret not in told
        before, _, after = around.format("\0").partition("\0")
        assert told == before + HIDDEN + after or HIDDEN in told


@pytest.mark.parametrize("around", TWENTY)
def test_most_keys_of_24_letters_and_digits(around: str) -> None:
    random = Random(around)
    secrets = ["".join(random.choices(LETTERS, k=24)) for _ in range(1000)]
    assert sum(secret in text(around.format(secret)) for secret in secrets) < 150


@pytest.mark.parametrize("around", SPOKEN)
def test_a_password_in_a_sentence(around: str) -> None:
    assert text(around.format("hunter2")) == around.format(HIDDEN).replace("'", "")


@pytest.mark.parametrize(
    "given",
    [
        "password is required",
        "invalid token 'foo'",
        "Unexpected token '<' in JSON at position 0",
        "Token indices sequence length is longer than 512",
        "token 4096 of 8192, token /home/me2/token",
        "docker run -u 1000:1000 -u me",
        "sort(rows, key='name')",
    ],
)
def test_a_sentence_without_a_password(given: str) -> None:
    assert text(given) == given


@pytest.mark.parametrize(
    ("variables", "arguments", "secret"),
    [
        ({"HF_TOKEN": "Zq3x9k"}, (), "Zq3x9k"),
        ({"DB_PASSWORD": "abcdefgh"}, (), "abcdefgh"),
        ({"DATABASE_URL": "postgres://me:pw!one@db/runs"}, (), "pw!one"),
        ({}, ("train.py", "--hf-token", "aBcdefgh"), "aBcdefgh"),
        ({}, ("train.py", "--wandb-key=12ab34"), "12ab34"),
        ({}, ("train.py", "trainer.api_key='12ab34'"), "12ab34"),
        ({"PROXY_PASS": "ab cd/e"}, (), "ab%20cd%2Fe"),
        ({"PROXY_PASS": "ab cd/e"}, (), "ab+cd%2Fe"),
        ({"DB_PASSWORD": "Xq'3\"\\z"}, (), "Xq\\'3\"\\\\z"),
        ({"DB_PASSWORD": "Zürich9"}, (), "Z\\u00fcrich9"),
        ({"DB_PASSWORD": "hunter2"}, (), "aHVudGVyMg=="),
        ({"DB_PASSWORD": "Zq3-x9k-Wv7-b2"}, (), "Zq3-x9k\n-Wv7-b2"),
        ({"DB_PASSWORD": "Zq3-x9k-Wv7-b2"}, (), "Zq3-x9k\\n-Wv7-b2"),
    ],
)
@pytest.mark.parametrize("around", ["401 for {}", "x['{}']", "https://host/{}/x", "\x1b[31m{}!"])
def test_what_is_called_secret_once_is_secret_everywhere(
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    arguments: tuple[str, ...],
    secret: str,
    around: str,
) -> None:
    with learned(monkeypatch):
        remember(variables, arguments)
        assert text(around.format(secret)) == around.format(HIDDEN)


def test_what_a_variable_or_an_option_holds_is_mostly_no_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variables = {
        "PWD": "/home/me/runs",
        "SSH_AUTH_SOCK": "/tmp/ssh-Xq3/agent.1",
        "AUTH_TYPE": "kerberos",
        "TOKENIZERS_PARALLELISM": "false",
        "MODEL_URL": "https://hub:8080/models",
        "API_KEY": "none",
    }
    arguments = ("--image-key", "pixels", "--max-tokens", "131072", "--eos-token", "</turn>")
    with learned(monkeypatch):
        remember(variables, arguments)
        for value in (*variables.values(), *arguments[1::2]):
            assert text(f"the {value} of it") == f"the {value} of it"


def test_a_password_that_is_a_word_leaves_longer_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with learned(monkeypatch):
        remember({"PASSWORD": "training"}, ())
        assert text("training of trainings") == f"{HIDDEN} of trainings"


@contextmanager
def learned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget at the end what was learned meanwhile."""
    monkeypatch.setattr(known_secrets, "_values", set())
    monkeypatch.setattr(known_secrets, "_pattern", [])
    text.cache_clear()
    try:
        yield
    finally:
        text.cache_clear()


def test_a_cut_leaves_no_part_of_a_secret() -> None:
    secret = "hf_" + "aB3" * 12
    for place in range(60):
        given = "x " * 30 + "." * place + f" {secret} " + "x " * 3000
        assert secret[:6] not in beginning(given, 80)
        assert secret[-6:] not in end(given[::-1].replace(secret[::-1], secret), 80)


@pytest.mark.parametrize("repeated", ["hf_", "sk-", "eyJ", "-p ", "login ", "password=", "a,"])
def test_the_time_grows_with_the_length_alone(repeated: str) -> None:
    began = time.process_time()
    text(repeated * (100_000 // len(repeated)))
    assert time.process_time() - began < 10


@pytest.mark.parametrize("kind", ["RSA PRIVATE KEY", "PRIVATE KEY", "PGP PRIVATE KEY BLOCK"])
def test_a_private_key_goes_as_a_whole(kind: str) -> None:
    lines = "\n".join("x" * 64 for _ in range(5))
    key = f"-----BEGIN {kind}-----\n{lines}\n-----END {kind}-----"
    assert text(f"before {key} after") == f"before {HIDDEN} after"
    assert text(f"cut: {key[:90]}") == f"cut: {HIDDEN}"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--api-key", "abc"), ("--api-key", HIDDEN)),
        (("--wandb.api_key=abc",), (f"--wandb.api_key={HIDDEN}",)),
        (("+hf_token=abc",), (f"+hf_token={HIDDEN}",)),
        (("--hfToken", "abc"), ("--hfToken", HIDDEN)),
        (("hf_" + "a" * 20,), (HIDDEN,)),
        (("--set", "password=abc"), ("--set", f"password={HIDDEN}")),
        (("--password", "12345"), ("--password", HIDDEN)),
        (("--url", "https://me:abc@host/x"), ("--url", f"https://{HIDDEN}@host/x")),
        (("sh", "-c", "HF_TOKEN=abc train"), ("sh", "-c", f"HF_TOKEN={HIDDEN} train")),
        (("+a.password=two words",), (f"+a.password={HIDDEN}",)),
        (("a.password=one,two",), (f"a.password={HIDDEN}",)),
        (("--password", "one,two"), ("--password", HIDDEN)),
        (("-H", "Authorization: Basic bWU6cHc5=="), ("-H", f"Authorization: Basic {HIDDEN}")),
        (("curl", "-u", "me:abc"), ("curl", "-u", f"me:{HIDDEN}")),
        (("sshpass", "-p", "abc", "ssh"), ("sshpass", "-p", HIDDEN, "ssh")),
        (("mysql", "-u", "me", "-pabc"), ("mysql", "-u", "me", f"-p{HIDDEN}")),
        (("--hf-token", "123456789"), ("--hf-token", HIDDEN)),
    ],
)
def test_a_command_line_keeps_its_shape(given: tuple[str, ...], told: tuple[str, ...]) -> None:
    assert tuple(words(given)) == told


@pytest.mark.parametrize(
    "given",
    [
        ("--tokenizer", "gpt2"),
        ("--lr=0.1",),
        ("--password", "--verbose"),
        ("-v", "x=y"),
        ("--max-tokens", "4096"),
        ("--num_tokens=3_000_000",),
        ("--monkey", "x"),
        ("--author", "me"),
        ("--data", "/data/c4/en/c4-train.00000-of-01024.json.gz"),
        ("--run-name", "llama3_8b_bf16_tp8_pp4_dp2_seq8192_mbs1_gbs512"),
        ("--tokens-per-batch", "4096"),
        ("--token-dropout", "0.1"),
        ("--pass-rate", "0.5"),
        ("--num_key_value_heads", "8"),
        ("--image-token-index", "32000"),
        ("--eos_token", "</s>"),
        ("use_auth_token=True", "password=None", "trained_tokens=1.2e9"),
        ("--key-dim", "64", "--key-frame=10"),
        ("srun", "-p", "gpu-a100", "-u", "train.py"),
        ("docker", "run", "-p", "8080:80", "--user", "1000:1000"),
        ("ssh", "-p", "2222", "host"),
        ("--account", "ml-team", "--aws-region", "us-west-2", "hub_model_id=me/model"),
        ("model.key_dim=64", "~model.tokens", "++data.token_dropout=0.1"),
        ("python", "-u", "train.py", "a:b"),
        ("--pad-token", "<pad>", "--eos_token=stop"),
    ],
)
def test_other_arguments_stay(given: tuple[str, ...]) -> None:
    assert tuple(words(given)) == given


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCH_API_KEY", "x"),
        ("ACCELERATE_TOKEN", "x"),
        ("HFTOKEN", "x"),
        ("CUDA_PASSWORD_FILE", "x"),
        ("NCCL_SECRETS", "x"),
        ("TORCH_AUTH", "x"),
        ("FI_CREDENTIALS", "x"),
        ("TORCH_KEYS_PER_RANK_TOKENS", "x"),
    ],
)
def test_a_variable_by_its_name(name: str, value: str) -> None:
    section = Environment(variables=(Variable(name=name, value=value),))
    assert redact(section).get(name) == HIDDEN


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("TORCH_HOME", "https://me:pass@host/cache", f"https://{HIDDEN}@host/cache"),
        ("HF_HOME", "s3://user@bucket", f"s3://{HIDDEN}@bucket"),
        ("TORCH_LOGS", "hf_AbCdEfGhIjKlMnOpQrStUv", HIDDEN),
        ("NCCL_IB_PKEY", "0x7fff", "0x7fff"),
        ("TOKENIZERS_PARALLELISM", "true", "true"),
        ("HF_HOME", "https://host/cache", "https://host/cache"),
        ("MASTER_ADDR", "user-1.cluster", "user-1.cluster"),
        ("OMP_PLACES", "{0:4}:4:4", "{0:4}:4:4"),
        (
            "CUDA_VISIBLE_DEVICES",
            "GPU-8f2b0c1d-1234-5678-9abc-def012345678",
            "GPU-8f2b0c1d-1234-5678-9abc-def012345678",
        ),
    ],
)
def test_a_variable_by_its_value(name: str, value: str, told: str) -> None:
    section = Environment(variables=(Variable(name=name, value=value),))
    assert redact(section).get(name) == told


@pytest.mark.parametrize(
    "given",
    [
        "loss = model(input_ids, past_key_values=past_key_values)",
        "query, key, value = self.qkv(x).chunk(3, dim=-1)",
        "scaled_dot_product_attention(query, key=key, value=value)",
        "KeyError: 'labels'",
        'Missing key(s) in state_dict: "layers.0.weight"',
        "num_tokens=4096, tokens per second: 1234",
        "tokenizer = AutoTokenizer.from_pretrained('gpt2')",
        "sorted(rows, key=len)",
        "sort(key=attention_layer_normalization)",
        "CppMicroGemmWoQInt4Avx512 of DeepseekV3ForCausalLM2Layers",
        "at::_ops::_ZN2at4_ops19empty_memory_format4callEN3c108ArrayRefINS2_6SymIntEEE",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "_ZN5torch8autograd6Engine17evaluate_functionERSt10shared_ptrINS0_9GraphTaskEE",
        "[rank1]: RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x784 and 512x10)",
        "docker/overlay2/4f8e1c2d3b4a5968778695a4b3c2d1e0f1e2d3c4b5a69788796a5b4c3d2e1f00/merged",
        "torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py",
        "NCCL WARN Cuda failure 2 'out of memory' at enqueue.cc:1234",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=600",
        "from torch.nn.parallel import DistributedDataParallel as DDP",
        "Setting `pad_token_id` to `eos_token_id`:50256 for open-end generation.",
        "Please select a token to use as `pad_token` `(tokenizer.pad_token = tokenizer.eos_token "
        "e.g.)` or add one via `tokenizer.add_special_tokens({'pad_token': '[PAD]'})`",
        "{'eos_token': '<|endoftext|>', 'pad_token_id': 0}",
        "model.generate(ids, pad_token_id=tokenizer.eos_token_id, max_new_tokens=20)",
        "size mismatch for token_embedding.weight: copying a param with shape torch.Size([10, 4])",
        "KeyError: 'layer.0.key.weight'",
        "self.token_emb = nn.Embedding(50257, 768)",
        "next_token = logits.argmax(-1)",
        "token = next(stream)",
        "loss per token: 2.31, last token: 11",
        "The token: `<s>` is not in the vocabulary",
        "token=None, use_auth_token=False, credential: none",
        "signature=forward(x, y)",
        "hf_model_name_or_path, hf_transformer_config, npm_config_cache",
        "pip install sk-learn-intel-extension from pypi-mirror-internal-host",
        "Basic authentication of basic information",
        "https://host:8080/@scope/package",
        "Command '['torchrun', '--nproc-per-node', '2', '--tokenizer', 'gpt2']' returned 1",
        "def login(token, then=''): token: str, then: int",
        "hf_token=args.hf_token, use_auth_token=use_auth_token",
        "<eos_token>Hello</eos_token>",
        "step 1200 token 3.2B loss 2.31",
        "token | count | 5",
        "key -> value, secretary=anna",
        "PASS tests/x.py, pass 2 of 3, passed 12 tests",
        "https://host/x?page=2&sort=name",
        "sk-learn-1.2.3-cp311-manylinux",
        "ip-10-0-12-34.us-west-2.compute.internal, gpu-node-07.cluster",
        "run-20261124_190315-3k2j4h5g",
        "meta-llama/Llama-3.1-70B-Instruct, nvidia/Llama-3_1-Nemotron-Ultra-253B-v1",
        "PositionalEncoding('a', 'b'), self.auth(x)",
        "mask(a, key_padding_mask=key_padding_mask, need_weights=False)",
        "AWS_REGION=us-west-2 WANDB_PROJECT=llama HF_HOME=/data/hf",
        "fw_implementation_of_module, jina_embeddings_v3_base",
        "commit 607a30d783dfa663caf39e06633721c8d4cfcd7e",
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "kubepods/pod5f1b2c3d-4e5f-6789-abcd-ef0123456789/9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b",
        "torchinductor_me/ab/cabcdefghijklmnopqrstuvwxyz234567abcdefghijklmnopqrst.py:12",
        "/root/.triton/cache/ABCDEFGHIJKLMNOPQRSTUVWXYZ234567ABCDEFGHIJKLMNOPQRST/kernel.so",
    ],
)
def test_what_a_training_prints_stays(given: str) -> None:
    assert text(given) == given


def test_paths_and_names_of_libraries_stay() -> None:
    paths = [str(path) for path in SITE.rglob("*.py")]
    gone = [path for path in paths if text(path) != path]
    assert len(paths) > 5000
    # Such as the hash in the name of a compiled library.
    assert len(gone) <= 3, gone


def test_the_evidence_of_sound_hosts_stays() -> None:
    for section in healthy():
        assert redact(section) is section


def test_names_of_hosts_and_commits_stay() -> None:
    commit = "5f1d9a0c" * 5
    evidence = Evidence([Job(host=commit, arguments=("--commit", "main"), commit=commit)])
    assert evidence.hosts == (commit,)
    assert evidence.all(Job)[0].commit == commit


def test_evidence_has_no_secrets_however_it_is_made() -> None:
    section = Kernel(host="a", release="6.1", command_line="quiet password=hunter2")
    made = (
        Evidence([section]),
        Evidence().with_sections(section),
        Evidence([Job(host="a")]).with_sections(section),
    )
    for evidence in made:
        assert evidence.all(Kernel)[0].command_line == f"quiet password={HIDDEN}"
