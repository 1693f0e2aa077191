"""The model that tools/make_hybrid.py trains: transformers' Qwen3_5MoeForCausalLM with its block that predicts a token more, written for speed of training.

Parameters have the names of the checkpoint. Two things are computed otherwise than in transformers: the delta rule goes by chunks whose only sequential
part is one product of small matrices a chunk, and experts are one wide gated unit whose columns are weighted by the router (each expert is computed for
every token, which costs less than sorting tokens does where experts are narrow)."""
import torch
import torch.nn.functional as F
from torch import nn

CHUNK = 32
BLOCK = 8


def inverse_by_blocks(lower):
    """Returns (1 + L)^-1 of strictly lower triangular matrices: small blocks by powers, greater ones of halves."""
    size = lower.shape[-1]
    if size <= BLOCK:
        eye = torch.eye(size, device=lower.device, dtype=lower.dtype)
        power, result = -lower, eye - lower
        for _ in range(max(size - 1, 1).bit_length() - 1):
            power = power @ power
            result = result + result @ power
        return result
    half = size // 2
    blocks = torch.stack([lower[..., :half, :half], lower[..., half:, half:]])
    upper, under = inverse_by_blocks(blocks)
    corner = -under @ (lower[..., half:, :half] @ upper)
    return torch.cat([torch.cat([upper, torch.zeros_like(upper)], -1), torch.cat([corner, under], -1)], -2)


class UnitLowerInverse(torch.autograd.Function):
    """(1 + L)^-1, whose gradient needs the result alone."""

    @staticmethod
    def forward(context, lower):
        result = inverse_by_blocks(lower)
        context.save_for_backward(result)
        return result

    @staticmethod
    def backward(context, gradient):
        (result,) = context.saved_tensors
        turned = result.transpose(-1, -2)
        return -(turned @ gradient @ turned).tril(-1)


def delta_rule(query, key, value, log_decay, beta):
    """The gated delta rule from empty states: q, k [B, T, Hk, K], v [B, T, Hv, V], log decay and beta [B, T, Hv]. Returns [B, T, Hv, V].

    In a chunk with the state S before it, what position i adds to the state is u(i) - w(i) S, where T = (1 + L)^-1, u = T (beta v),
    w = T (beta decay k) and L holds what earlier keys of the chunk share with a key. The state after the chunk is A S + B with small A and B.
    """
    batch, length, key_heads, width = key.shape
    heads, value_width = value.shape[2:]
    spare = -length % CHUNK

    def chunked(x):  # [B, T, H, N] to [chunks, B, H, CHUNK, N]
        x = F.pad(x.float(), (0, 0) * (x.dim() - 2) + (0, spare)) if spare else x.float()
        x = x.reshape(batch, -1, CHUNK, *x.shape[2:])
        return x.permute(1, 0, 3, 2, *range(4, x.dim())).contiguous()

    query, key = (x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6) for x in (query.float(), key.float()))
    query = query * width**-0.5
    query, key, value = (chunked(x.repeat_interleave(heads // x.shape[2], 2) if x.shape[2] < heads else x) for x in (query, key, value))
    beta, total = chunked(beta), chunked(log_decay).cumsum(-1)
    ones = torch.ones(CHUNK, CHUNK, device=key.device, dtype=torch.bool)
    pairs = (total[..., :, None] - total[..., None, :]).masked_fill(ones.triu(1), float("-inf")).exp()
    of_start = total.exp()[..., None]
    key_beta = key * beta[..., None]
    inverse = UnitLowerInverse.apply((key_beta @ key.transpose(-1, -2) * pairs).tril(-1))
    u, w = inverse @ (value * beta[..., None]), inverse @ (key_beta * of_start)
    to_end = (key * (total[..., -1:] - total).exp()[..., None]).transpose(-1, -2)
    over = torch.diag_embed(total[..., -1:].exp().expand(*total.shape[:-1], width)) - to_end @ w
    added = to_end @ u
    state = torch.zeros(batch * heads, width, value_width, device=key.device, dtype=added.dtype)
    states = []
    for a, b in zip(over.flatten(1, 2).unbind(0), added.flatten(1, 2).unbind(0)):
        states.append(state)
        state = torch.baddbmm(b, a, state)
    before = torch.stack(states).view(-1, batch, heads, width, value_width)
    out = (query * of_start) @ before + (query @ key.transpose(-1, -2) * pairs) @ (u - w @ before)
    return out.permute(1, 0, 3, 2, 4).reshape(batch, -1, heads, value_width)[:, :length]


class Norm(nn.Module):
    """RMS norm whose factors are 1 + weight."""

    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(width)), eps

    def forward(self, x):
        return F.rms_norm(x.float(), x.shape[-1:], 1 + self.weight, self.eps)


class GatedNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x, gate):
        return F.rms_norm(x.float(), x.shape[-1:], self.weight, self.eps) * F.silu(gate.float())


class DeltaNet(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.shape = c["linear_key_head_dim"], c["linear_value_head_dim"]
        self.keys, self.values = c["linear_num_key_heads"] * self.shape[0], c["linear_num_value_heads"] * self.shape[1]
        heads, d, taps = c["linear_num_value_heads"], c["hidden_size"], c["linear_conv_kernel_dim"]
        mixed = 2 * self.keys + self.values
        self.in_proj_qkv, self.in_proj_z = nn.Linear(d, mixed, bias=False), nn.Linear(d, self.values, bias=False)
        self.in_proj_a, self.in_proj_b = nn.Linear(d, heads, bias=False), nn.Linear(d, heads, bias=False)
        self.conv1d = nn.Conv1d(mixed, mixed, taps, groups=mixed, padding=taps - 1, bias=False)
        # Heads forget at rates spread over powers of two, from a few tokens to the whole context.
        self.A_log = nn.Parameter(torch.linspace(0.0, 2.0, heads))
        self.dt_bias = nn.Parameter(torch.linspace(-7.0, -1.0, heads))
        self.norm = GatedNorm(self.shape[1], c["rms_norm_eps"])
        self.out_proj = nn.Linear(self.values, d, bias=False)

    def forward(self, x):
        batch, length, _ = x.shape
        mixed, gate = self.in_proj_qkv(x).float(), self.in_proj_z(x)
        taps = self.conv1d.weight.shape[-1]
        past = F.pad(mixed, (0, 0, taps - 1, 0))
        mixed = F.silu(sum(past[:, i : i + length] * self.conv1d.weight[:, 0, i] for i in range(taps)))
        query, key, value = mixed.split([self.keys, self.keys, self.values], -1)
        with torch.autocast(x.device.type, enabled=False):
            a, b = self.in_proj_a(x.float()), self.in_proj_b(x.float())
            decay = -self.A_log.exp() * F.softplus(a + self.dt_bias)
            query, key = (t.reshape(batch, length, -1, self.shape[0]) for t in (query, key))
            value = value.reshape(batch, length, -1, self.shape[1])
            out = delta_rule(query, key, value, decay, b.sigmoid())
        return self.out_proj(self.norm(out, gate.view(out.shape)).reshape(batch, length, -1))


def rotated(x, cos, sin):
    turned, kept = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    first, second = turned.chunk(2, -1)
    return torch.cat([turned * cos + torch.cat([-second, first], -1) * sin, kept], -1)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.width, d = c["num_attention_heads"], c["head_dim"], c["hidden_size"]
        self.q_proj = nn.Linear(d, self.heads * self.width * 2, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(d, c["num_key_value_heads"] * self.width, bias=False) for _ in range(2))
        self.o_proj = nn.Linear(self.heads * self.width, d, bias=False)
        self.q_norm, self.k_norm = Norm(self.width, c["rms_norm_eps"]), Norm(self.width, c["rms_norm_eps"])
        turned = int(self.width * c["rope_parameters"]["partial_rotary_factor"])
        self.rates = c["rope_parameters"]["rope_theta"] ** (-torch.arange(0, turned, 2, dtype=torch.float) / turned)

    def forward(self, x):
        batch, length, _ = x.shape
        query, gate = self.q_proj(x).view(batch, length, self.heads, -1).chunk(2, -1)
        key, value = (p(x).view(batch, length, -1, self.width).transpose(1, 2) for p in (self.k_proj, self.v_proj))
        angles = torch.arange(length, device=x.device)[:, None] * self.rates.to(x.device)
        cos, sin = (torch.cat([t, t], -1) for t in (angles.cos(), angles.sin()))
        query, key = rotated(self.q_norm(query.transpose(1, 2)), cos, sin), rotated(self.k_norm(key), cos, sin)
        query, key = query.to(value.dtype), key.to(value.dtype)
        key, value = (t.repeat_interleave(self.heads // t.shape[1], 1) for t in (key, value))
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2)
        return self.o_proj((out * gate.sigmoid()).reshape(batch, length, -1))


class Expert(nn.Module):
    def __init__(self, d, width):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(d, width, bias=False), nn.Linear(d, width, bias=False), nn.Linear(width, d, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Stacked(nn.Module):
    def __init__(self, number, d, width):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(number, 2 * width, d))
        self.down_proj = nn.Parameter(torch.empty(number, d, width))

    def forward(self, x, weights):
        number, double, d = self.gate_up_proj.shape
        both = F.linear(x, self.gate_up_proj.view(number * double, d)).view(*x.shape[:-1], number, 2, double // 2)
        inner = F.silu(both[..., 0, :]) * both[..., 1, :] * weights[..., None].to(both.dtype)
        return F.linear(inner.flatten(-2), self.down_proj.transpose(0, 1).reshape(d, -1))


class Mixture(nn.Module):
    def __init__(self, c):
        super().__init__()
        d = c["hidden_size"]
        self.number, self.top = c["num_experts"], c["num_experts_per_tok"]
        self.gate = nn.Linear(d, self.number, bias=False)
        self.experts = Stacked(self.number, d, c["moe_intermediate_size"])
        self.shared_expert = Expert(d, c["shared_expert_intermediate_size"])
        self.shared_expert_gate = nn.Linear(d, 1, bias=False)

    def forward(self, x):
        """Returns what the experts say, and how unevenly tokens are spread over them (1 where evenly)."""
        with torch.autocast(x.device.type, enabled=False):
            shares = F.linear(x.float(), self.gate.weight).softmax(-1)
            opened = F.linear(x.float(), self.shared_expert_gate.weight).sigmoid()
        best, which = shares.topk(self.top, -1)
        taken = torch.zeros_like(shares).scatter(-1, which, 1.0)
        weights = taken * shares / best.sum(-1, keepdim=True)
        uneven = (taken.flatten(0, -2).mean(0) * shares.flatten(0, -2).mean(0)).sum() * self.number / self.top
        return self.experts(x, weights) + opened * self.shared_expert(x), uneven


class Layer(nn.Module):
    def __init__(self, c, kind):
        super().__init__()
        self.input_layernorm = Norm(c["hidden_size"], c["rms_norm_eps"])
        self.post_attention_layernorm = Norm(c["hidden_size"], c["rms_norm_eps"])
        if kind == "linear_attention":
            self.linear_attn = DeltaNet(c)
        else:
            self.self_attn = Attention(c)
        self.mlp = Mixture(c)

    def forward(self, x):
        mixer = self.linear_attn if hasattr(self, "linear_attn") else self.self_attn
        x = x + mixer(self.input_layernorm(x))
        more, uneven = self.mlp(self.post_attention_layernorm(x))
        return x + more, uneven


class Predictor(nn.Module):
    """The block that predicts a token more: from what the model ends with at a position and the token that follows it."""

    def __init__(self, c):
        super().__init__()
        d = c["hidden_size"]
        self.fc = nn.Linear(2 * d, d, bias=False)
        self.layers = nn.ModuleList([Layer(c, "full_attention")])
        self.norm, self.pre_fc_norm_embedding, self.pre_fc_norm_hidden = (Norm(d, c["rms_norm_eps"]) for _ in range(3))

    def forward(self, embedded, last):
        before = F.pad(last[:, :-1], (0, 0, 1, 0))
        x = self.fc(torch.cat([self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(before)], -1))
        x, uneven = self.layers[0](x.float())
        return self.norm(x), uneven


class Trunk(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList([Layer(c, kind) for kind in c["layer_types"]])
        self.norm = Norm(c["hidden_size"], c["rms_norm_eps"])


class Hybrid(nn.Module):
    """The whole model. Its embedding is its head too."""

    def __init__(self, c):
        super().__init__()
        self.model, self.mtp = Trunk(c), Predictor(c)
        deep = (2 * len(c["layer_types"])) ** -0.5
        for name, p in self.named_parameters():
            if p.dim() >= 2:
                fan = p.shape[-1] if "conv1d" not in name else 2.0
                ends = name.endswith(("out_proj.weight", "o_proj.weight", "down_proj", "down_proj.weight"))
                nn.init.normal_(p, std=0.02 if "embed" in name else (deep if ends else 1.0) * 0.5 * fan**-0.5)

    def forward(self, ids):
        """Returns the normed rows that the head reads, the model's own and the predictor's, and the unevenness of all layers."""
        x = embedded = self.model.embed_tokens(ids)
        spread = []
        for layer in self.model.layers:
            x, uneven = layer(x)
            spread.append(uneven)
        own = self.model.norm(x)
        more, uneven = self.mtp(embedded, own)
        return own, more, torch.stack(spread + [uneven]).mean()

    def loss(self, rows, ids, weights):
        """Cross-entropy of the head at `rows` against `ids`, weighted by position."""
        logits = F.linear(rows, self.model.embed_tokens.weight)
        each = F.cross_entropy(logits.float().flatten(0, 1), ids.flatten(), reduction="none")
        return (each * weights.flatten()).sum() / weights.sum()
