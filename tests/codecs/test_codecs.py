"""Codecs: the simulator's version is decode(encode(v)) to the bit, in length and in value; errors keep their bounds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from fewjoule.codecs import CODECS, codec, decode
from fewjoule.codecs.levels import largest
from fewjoule.errors import InputError

SPECS = (
    "float32", "float16", "quantise:1", "quantise:3", "lloyd-max:1", "lloyd-max:3", "top-k:0.1:1", "top-k:0.5:3",
    "uniform:1", "uniform:6",
)  # fmt: skip
LOSSY = SPECS[2:]
LENGTH = 40
APPLY = {spec: jax.jit(jax.vmap(codec(spec).apply)) for spec in SPECS}
LARGEST = jax.jit(largest, static_argnums=1)

floats = st.floats(-(2.0**126), 2.0**126, width=32)
vectors = arrays(np.float32, LENGTH, elements=st.one_of(st.just(0.0), floats, st.floats(-1, 1, width=32)))


def edges(length):
    """Vectors at which a codec could break."""
    rng = np.random.default_rng(length)
    huge, tiny = np.full(length, 1e-3), np.full(length, 1e-40)
    huge[-1] = 2.0**126
    spiked = tiny.copy()
    spiked[0] = 1
    normal = rng.standard_normal(length)
    many = [
        np.zeros(length), -np.zeros(length), huge, -huge, tiny, spiked, np.ones(length), -np.ones(length), normal,
        normal * 1e-30, normal * 1e30, normal**7, np.arange(length) - length // 2, np.full(length, 2.0**-100),
        np.full(length, 65504.0), np.full(length, 1e-7), np.where(np.arange(length) % 2, 5.0, -3.0),
    ]  # fmt: skip
    return np.stack(many).astype(np.float32)


EDGES = len(edges(1))


def assert_agree(spec, vectors):
    """decode(encode(v)) for each vector, held against the simulator's program."""
    keys = jax.random.split(jax.random.key(7), EDGES)
    received, _, sizes = APPLY[spec](jnp.resize(vectors, (EDGES, vectors.shape[1])), keys)
    out = []
    for vector, key, simulated, size in zip(vectors, keys, np.asarray(received), np.asarray(sizes), strict=False):
        message = codec(spec).encode(vector, key)
        assert len(message) == size <= codec(spec).most_bytes(len(vector))
        decoded = decode(message, len(vector))
        assert decoded.dtype == np.float32
        np.testing.assert_array_equal(decoded, simulated)
        np.testing.assert_array_equal(codec(spec).decode(message, len(vector)), simulated)
        out.append(decoded)
    return out


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("length", [1, LENGTH])
def test_simulated_is_decoded_at_the_edges(spec, length):
    assert_agree(spec, edges(length))


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=40, deadline=None)
@given(vector=vectors)
def test_simulated_is_decoded_for_any_vector(spec, vector):
    (decoded,) = assert_agree(spec, vector[None])
    assert_bound(spec, vector, decoded)


def assert_bound(spec, vector, decoded):
    """The error that each codec promises."""
    v, w = vector.astype(np.float64), decoded.astype(np.float64)
    top, small = np.abs(v).max(), 2.0**-100 + np.abs(v).max() * 2.0**-60
    if spec == "float32":
        np.testing.assert_array_equal(decoded, vector)
    elif spec == "float16":
        np.testing.assert_array_equal(decoded, np.clip(vector, -65504, 65504).astype(np.float16).astype(np.float32))
    elif spec.startswith("quantise"):
        assert (np.abs(w - v) <= 2.02 * top / (2 ** int(spec[-1]) - 1) + small).all()
    elif spec.startswith("uniform"):
        assert (np.abs(w - v) <= max(0.504 * np.ptp(v) / (2 ** int(spec[-1]) - 1), top / 15_000) + small).all()
    else:
        assert ((w - v) ** 2).sum() <= (v**2).sum() * (1 + 1e-6)


@pytest.mark.parametrize("spec", LOSSY)
def test_bounds_hold_at_the_edges(spec):
    vectors = edges(LENGTH)
    for vector, decoded in zip(vectors, assert_agree(spec, vectors), strict=True):
        assert_bound(spec, vector, decoded)


@pytest.mark.parametrize("spec", SPECS)
def test_zeros_stay_zeros(spec):
    for vector in (np.zeros(LENGTH, np.float32), np.full(LENGTH, 1e-41, np.float32)):
        decoded = decode(codec(spec).encode(vector, jax.random.key(0)), LENGTH)
        if spec == "float32":
            np.testing.assert_array_equal(decoded, vector)
        else:
            assert (decoded == 0).all()


@pytest.mark.parametrize("spec", ["quantise:1", "quantise:2", "quantise:4"])
def test_quantise_is_unbiased(spec):
    """Each weight's mean over 4000 keys, by a z-test; 200 weights, all at a level of 1e-3 together (Bonferroni)."""
    rng = np.random.default_rng(3)
    vector = jnp.asarray(rng.standard_normal(200), jnp.float32)
    keys = jax.random.split(jax.random.key(11), 4000)
    received = np.asarray(jax.jit(jax.vmap(lambda key: codec(spec).apply(vector, key)[0]))(keys), np.float64)
    deviation, spread = received.mean(0) - np.asarray(vector), received.std(0) / np.sqrt(len(keys))
    limit = stats.norm.ppf(1 - 1e-3 / 200 / 2)
    moved = spread > 1e-7
    assert (np.abs(deviation[moved]) <= limit * spread[moved] + 1e-6).all()
    assert (np.abs(deviation[~moved]) <= 1e-5).all()
    spacing = 2 * 1.01 * np.abs(vector).max() / (2 ** int(spec[-1]) - 1)
    assert received.var(0).max() <= spacing**2 / 4 * 1.1  # of a two-valued number, at most


@pytest.mark.parametrize(("bits", "distortion"), [(1, 0.3634), (2, 0.1175), (3, 0.03454)])
def test_lloyd_max_reaches_the_published_distortion_of_a_gaussian(bits, distortion):
    """Max 1960, table I: mean squared error of the best levels for a unit Gaussian."""
    vector = np.random.default_rng(5).standard_normal(200_000).astype(np.float32)
    error = decode(codec(f"lloyd-max:{bits}").encode(vector), len(vector)) - vector
    assert (error**2).mean() == pytest.approx(distortion, rel=0.04)


@settings(max_examples=50, deadline=None)
@given(vector=vectors, k=st.sampled_from([1, 7, LENGTH - 1, LENGTH]))
def test_largest_is_what_sorting_gives(vector, k):
    magnitudes = np.abs(np.where(np.abs(vector) < 2.0**-100, 0, vector))
    order = np.argsort(-magnitudes, kind="stable")[:k]
    wanted = np.sort(order[magnitudes[order] > 0])
    padding = np.full(k - len(wanted), LENGTH)
    np.testing.assert_array_equal(LARGEST(magnitudes, k), np.concatenate([wanted, padding]))


def test_top_k_keeps_the_largest_and_positions_cost_near_their_entropy():
    vector = np.random.default_rng(1).laplace(size=20_000).astype(np.float32)
    message = codec("top-k:0.1:1").encode(vector)
    decoded = decode(message, len(vector))
    assert (decoded != 0).sum() == 2000
    assert np.abs(vector[decoded != 0]).min() >= np.abs(vector[decoded == 0]).max()
    assert (np.sign(decoded) == np.sign(vector))[decoded != 0].all()
    assert np.abs(decoded[decoded != 0]) == pytest.approx(np.abs(vector[decoded != 0]).mean(), rel=2.0**-8)
    entropy = -(0.1 * np.log2(0.1) + 0.9 * np.log2(0.9))
    assert entropy + 0.1 < len(message) * 8 / 20_000 < 1.03 * entropy + 0.1 + 0.02


def test_uniform_levels_lie_where_the_values_are():
    """Twenty answers of 6 bits are 25 bytes; an offset costs a byte, not precision, as levels around 0 would."""
    wave = (10 * np.sin(np.linspace(-5, 5, 20))).astype(np.float32)
    message = codec("uniform:6").encode(wave)
    assert len(message) == 25
    warm = 20 + wave / 4
    message = codec("uniform:6").encode(warm)
    assert len(message) == 26
    assert np.abs(decode(message, 20) - warm).max() <= 0.504 * np.ptp(warm) / 63


def test_a_vector_that_diverged_is_refused_on_a_device_and_nan_in_the_simulator():
    for bad in (np.nan, np.inf, 3e38):
        vector = np.ones(LENGTH, np.float32)
        vector[3] = bad
        for spec in SPECS:
            with pytest.raises(InputError, match="diverged"):
                codec(spec).encode(vector, jax.random.key(0))
        for spec in LOSSY:
            many, keys = np.tile(vector, (EDGES, 1)), jax.random.split(jax.random.key(0), EDGES)
            assert np.isnan(np.asarray(APPLY[spec](many, keys)[0])).all()


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ("quantize:3", "did you mean 'quantise'"), ("quantise", "quantise:BITS"), ("quantise:9", "1 to 8"),
        ("quantise:x", "1 to 8"), ("lloyd-max:7", "1 to 6"), ("uniform:9", "1 to 8"),
        ("top-k:0:1", "above 0"), ("top-k:1.5", "at most 1"),
        ("top-k:0.1:2:3", "SHARE"), ("top-k", "SHARE"), ("float32:2", "write float32"), (3, "name such as"),
        ("top-k:nan:1", "above 0"),
    ],
)  # fmt: skip
def test_wrong_specs_are_explained(spec, match):
    with pytest.raises(InputError, match=match):
        codec(spec)


def test_specs_name_their_codecs():
    for spec in SPECS:
        assert codec(codec(spec).spec) == codec(spec) == codec(codec(spec))
        assert type(codec(spec)) is CODECS[spec.split(":")[0]]
    assert len({kind.kind for kind in CODECS.values()}) == len(CODECS)


def test_a_codec_is_checked_when_it_is_made():
    for make in (lambda: CODECS["quantise"](9), lambda: CODECS["lloyd-max"](0), lambda: CODECS["top-k"](1.5, 1)):
        with pytest.raises(InputError, match="cannot be made; write"):
            make()


def test_what_a_codec_cannot_send():
    for bad in (np.zeros((2, 2), np.float32), np.zeros(0, np.float32), np.arange(3)):
        with pytest.raises(InputError, match="one vector"):
            codec("quantise:3").encode(bad, jax.random.key(0))
    with pytest.raises(InputError, match="give encode"):
        codec("quantise:3").encode(np.ones(3, np.float32))
