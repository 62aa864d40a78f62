#include "lab/torch_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <optional>

namespace carpool {

using Kind = TorchValue::Kind;

/// Runs a pickle's program on a stack of value indices. Opcodes: Python's pickletools.
class PickleProgram {
 public:
  PickleProgram(std::string_view code, TorchFile& file) : code_(code), file_(file) {}

  Status Run() {
    bool stopped = false;
    while (!stopped && problem_.empty()) stopped = Step(Byte());
    if (problem_.empty() && stack_.size() != 1) Fail("its program leaves no single value");
    if (!problem_.empty())
      return MakeError(ErrorCode::kCorrupt, "{}: not a pickle of plain data: {}", file_.name_,
                       problem_);
    file_.root_ = stack_.back();
    return {};
  }

 private:
  static constexpr size_t kMaxValues = size_t{1} << 24;

  void Fail(std::string what) {
    if (problem_.empty()) problem_ = std::move(what);
  }
  std::string_view Take(size_t n) {
    if (n > code_.size() - at_) {
      Fail("it is cut short");
      at_ = code_.size();
      return {};
    }
    at_ += n;
    return code_.substr(at_ - n, n);
  }
  uint8_t Byte() {
    const std::string_view b = Take(1);
    return b.empty() ? uint8_t{'.'} : static_cast<uint8_t>(b[0]);
  }
  /// Little-endian and signed when `n` is 4.
  int64_t Number(size_t n) {
    const std::string_view b = Take(n);
    uint64_t value = 0;
    for (size_t i = 0; i < b.size(); ++i) value |= uint64_t{static_cast<uint8_t>(b[i])} << (8 * i);
    return static_cast<int64_t>(value);
  }
  std::string Line() {
    const size_t end = code_.find('\n', at_);
    if (end == std::string_view::npos) {
      Fail("it is cut short");
      return {};
    }
    std::string line(code_.substr(at_, end - at_));
    at_ = end + 1;
    return line;
  }

  size_t New(Kind kind) {
    if (file_.values_.size() >= kMaxValues) Fail("it has too many values");
    file_.values_.emplace_back();
    file_.values_.back().kind = kind;
    return file_.values_.size() - 1;
  }
  TorchValue& Value(size_t index) { return file_.values_[index]; }
  void PushInt(int64_t value) {
    stack_.push_back(New(Kind::kInt));
    Value(stack_.back()).integer = value;
  }
  void PushText(Kind kind, std::string text) {
    stack_.push_back(New(kind));
    Value(stack_.back()).text = std::move(text);
  }
  size_t Pop() {
    if (stack_.empty() || (!marks_.empty() && stack_.size() <= marks_.back())) {
      Fail("its stack runs empty");
      return New(Kind::kNone);
    }
    const size_t top = stack_.back();
    stack_.pop_back();
    return top;
  }
  std::vector<size_t> PopMark() {
    if (marks_.empty()) {
      Fail("a mark is missing");
      return {};
    }
    std::vector<size_t> items(stack_.begin() + static_cast<ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }
  void PushList(std::vector<size_t> items) {
    const size_t list = New(Kind::kList);
    Value(list).items = std::move(items);
    stack_.push_back(list);
  }
  void PushTuple(size_t n) {
    std::vector<size_t> items(n);
    for (size_t i = n; i-- > 0;) items[i] = Pop();
    PushList(std::move(items));
  }
  /// The container below the popped values.
  TorchValue* Top(Kind kind) {
    if (stack_.empty() || Value(stack_.back()).kind != kind) {
      Fail("values for a container that is not there");
      return nullptr;
    }
    return &Value(stack_.back());
  }
  void Append(const std::vector<size_t>& items) {
    if (TorchValue* list = Top(Kind::kList))
      list->items.insert(list->items.end(), items.begin(), items.end());
  }
  void SetItems(const std::vector<size_t>& items) {
    TorchValue* dict = Top(Kind::kDict);
    if (items.size() % 2 != 0) Fail("a key without a value");
    for (size_t i = 0; dict != nullptr && i + 1 < items.size(); i += 2)
      dict->entries.emplace_back(items[i], items[i + 1]);
  }
  void Remember(size_t key) {
    if (stack_.empty()) return Fail("its stack runs empty");
    memo_[key] = stack_.back();
  }
  void Recall(size_t key) {
    const auto it = memo_.find(key);
    if (it == memo_.end()) return Fail("it refers to a value it never made");
    stack_.push_back(it->second);
  }

  std::optional<std::vector<int64_t>> Ints(size_t index) {
    if (Value(index).kind != Kind::kList) return std::nullopt;
    std::vector<int64_t> out;
    for (const size_t i : Value(index).items) {
      if (Value(i).kind != Kind::kInt) return std::nullopt;
      out.push_back(Value(i).integer);
    }
    return out;
  }

  /// ('storage', type, key, device, elements) -> a storage.
  void PersistentId() {
    const TorchValue id = Value(Pop());
    if (id.kind != Kind::kList || id.items.size() < 5 || Value(id.items[0]).text != "storage" ||
        Value(id.items[1]).kind != Kind::kName || Value(id.items[4]).kind != Kind::kInt)
      return Fail("a reference that is no storage");
    const std::string type = Value(id.items[1]).text;
    const size_t storage = New(Kind::kStorage);
    Value(storage).type = type.substr(type.rfind(' ') + 1);
    Value(storage).text = Value(id.items[2]).text;
    Value(storage).integer = Value(id.items[4]).integer;
    stack_.push_back(storage);
  }

  void Reduce() {
    const size_t arguments = Pop(), function = Pop();
    if (Value(function).kind != Kind::kName || Value(arguments).kind != Kind::kList)
      return Fail("a call of no function");
    const std::string name = Value(function).text;
    const std::vector<size_t> items = Value(arguments).items;
    if (name == "collections OrderedDict") {
      stack_.push_back(New(Kind::kDict));
      return;
    }
    if (name != "torch._utils _rebuild_tensor_v2" && name != "torch._utils _rebuild_tensor")
      return Fail(fmt::format("it wants to call {}", name));
    if (items.size() < 4 || Value(items[0]).kind != Kind::kStorage ||
        Value(items[1]).kind != Kind::kInt)
      return Fail("a tensor without storage");
    const auto shape = Ints(items[2]), strides = Ints(items[3]);
    if (!shape || !strides || shape->size() != strides->size() || shape->size() > 8)
      return Fail("a tensor without a shape");
    const size_t tensor = New(Kind::kTensor);
    TorchValue& t = Value(tensor);
    t.type = Value(items[0]).type;
    t.text = Value(items[0]).text;
    t.offset = Value(items[1]).integer;
    t.shape = *shape;
    t.strides = *strides;
    stack_.push_back(tensor);
  }

  /// True at the end of the program.
  bool Step(uint8_t op) {
    switch (op) {
      case 0x80:
        Take(1);
        break;  // PROTO
      case 0x95:
        Take(8);
        break;  // FRAME
      case '.':
        return true;  // STOP
      case '(':
        marks_.push_back(stack_.size());
        break;  // MARK
      case '0':
        Pop();
        break;  // POP
      case 'N':
        stack_.push_back(New(Kind::kNone));
        break;  // NONE
      case 0x88:
        PushInt(1);
        break;  // NEWTRUE
      case 0x89:
        PushInt(0);
        break;  // NEWFALSE
      case 'J':
        PushInt(static_cast<int32_t>(Number(4)));
        break;  // BININT
      case 'K':
        PushInt(Number(1));
        break;  // BININT1
      case 'M':
        PushInt(Number(2));
        break;  // BININT2
      case 0x8a:
        Long(static_cast<size_t>(Number(1)));
        break;  // LONG1
      case 'G':
        Float();
        break;  // BINFLOAT
      case 'X':
        PushText(Kind::kString, std::string(Take(static_cast<size_t>(Number(4)))));
        break;
      case 0x8c:
        PushText(Kind::kString, std::string(Take(static_cast<size_t>(Number(1)))));
        break;
      case '}':
        stack_.push_back(New(Kind::kDict));
        break;  // EMPTY_DICT
      case ']':
      case ')':
        PushList({});
        break;  // EMPTY_LIST, EMPTY_TUPLE
      case 0x85:
        PushTuple(1);
        break;  // TUPLE1
      case 0x86:
        PushTuple(2);
        break;  // TUPLE2
      case 0x87:
        PushTuple(3);
        break;  // TUPLE3
      case 't':
        PushList(PopMark());
        break;  // TUPLE
      case 'a': {
        const size_t item = Pop();
        Append({item});
        break;
      }  // APPEND
      case 'e':
        Append(PopMark());
        break;     // APPENDS
      case 's': {  // SETITEM
        const size_t value = Pop(), key = Pop();
        SetItems({key, value});
        break;
      }
      case 'u':
        SetItems(PopMark());
        break;  // SETITEMS
      case 'q':
        Remember(static_cast<size_t>(Number(1)));
        break;  // BINPUT
      case 'r':
        Remember(static_cast<size_t>(Number(4)));
        break;  // LONG_BINPUT
      case 0x94:
        Remember(memo_.size());
        break;  // MEMOIZE
      case 'h':
        Recall(static_cast<size_t>(Number(1)));
        break;  // BINGET
      case 'j':
        Recall(static_cast<size_t>(Number(4)));
        break;  // LONG_BINGET
      case 'c': {
        const std::string module = Line();
        PushText(Kind::kName, module + " " + Line());
        break;
      }
      case 0x93: {  // STACK_GLOBAL
        const std::string name = Value(Pop()).text, module = Value(Pop()).text;
        PushText(Kind::kName, module + " " + name);
        break;
      }
      case 'Q':
        PersistentId();
        break;  // BINPERSID
      case 'R':
        Reduce();
        break;  // REDUCE
      default:
        Fail(fmt::format("opcode {:#04x} is not read", op));
    }
    return false;
  }

  void Long(size_t n) {
    const std::string_view b = Take(n);
    if (n > 8) return Fail("a number above 64 bits");
    uint64_t value = 0;
    for (size_t i = 0; i < b.size(); ++i) value |= uint64_t{static_cast<uint8_t>(b[i])} << (8 * i);
    if (n > 0 && n < 8 && (static_cast<uint8_t>(b.back()) & 0x80) != 0)
      value |= ~uint64_t{0} << (8 * n);
    PushInt(static_cast<int64_t>(value));
  }
  void Float() {
    uint64_t bits = 0;
    for (const char c : Take(8)) bits = bits << 8 | static_cast<uint8_t>(c);  // big-endian
    stack_.push_back(New(Kind::kFloat));
    Value(stack_.back()).real = std::bit_cast<double>(bits);
  }

  std::string_view code_;
  TorchFile& file_;
  size_t at_ = 0;
  std::vector<size_t> stack_, marks_;
  std::map<size_t, size_t> memo_;
  std::string problem_;
};

Result<TorchFile> TorchFile::Parse(std::string_view bytes, const std::string& name) {
  TorchFile file;
  file.name_ = name;
  ASSIGN_OR_RETURN(file.members_, ReadStoredZip(bytes, name));
  for (const auto& [path, content] : file.members_) {
    if (path == "byteorder" && content != "little")
      return MakeError(ErrorCode::kUnsupported, "{}: big-endian tensors are not read", name);
  }
  for (const auto& [path, content] : file.members_) {
    if (path != "data.pkl") continue;
    RETURN_IF_ERROR(PickleProgram(content, file).Run());
    return file;
  }
  return MakeError(ErrorCode::kCorrupt, "{}: not a file that torch.save wrote: no data.pkl in it",
                   name);
}

const TorchValue* TorchFile::Find(const TorchValue& dict, std::string_view key) const {
  for (const auto& [k, v] : dict.entries)
    if (values_[k].kind == Kind::kString && values_[k].text == key) return &values_[v];
  return nullptr;
}

namespace {

template <typename T>
int64_t Element(const char* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return static_cast<int64_t>(value);
}

struct IntegerType {
  std::string_view name;
  size_t size;
  int64_t (*load)(const char*);
};
constexpr IntegerType kIntegers[] = {
    {"IntStorage", 4, Element<int32_t>},   {"LongStorage", 8, Element<int64_t>},
    {"ShortStorage", 2, Element<int16_t>}, {"CharStorage", 1, Element<int8_t>},
    {"ByteStorage", 1, Element<uint8_t>},
};

}  // namespace

Result<std::vector<int64_t>> TorchFile::Integers(const TorchValue& t) const {
  const auto bad = [&](const std::string& what) {
    return MakeError(ErrorCode::kCorrupt, "{}: {}", name_, what);
  };
  const auto* type = std::find_if(std::begin(kIntegers), std::end(kIntegers),
                                  [&](const IntegerType& i) { return i.name == t.type; });
  if (t.kind != Kind::kTensor || type == std::end(kIntegers))
    return bad(fmt::format("wanted a tensor of integers, got {}",
                           t.type.empty() ? std::string("something else") : t.type));
  const auto member = std::find_if(members_.begin(), members_.end(),
                                   [&](const auto& m) { return m.first == "data/" + t.text; });
  if (member == members_.end()) return bad("a tensor's data is missing");
  const auto elements = static_cast<int64_t>(member->second.size() / type->size);
  // The last element reached; sizes stay far below what could overflow.
  int64_t last = t.offset, total = 1;
  for (size_t d = 0; d < t.shape.size(); ++d) {
    if (t.shape[d] < 0 || t.shape[d] > elements || t.strides[d] < 0 || t.strides[d] > elements)
      return bad("a tensor is larger than its data");
    total *= t.shape[d];
    if (total == 0) return std::vector<int64_t>{};
    last += (t.shape[d] - 1) * t.strides[d];
    if (total > elements || last >= elements) return bad("a tensor is larger than its data");
  }
  if (t.offset < 0 || last >= elements) return bad("a tensor is larger than its data");
  std::vector<int64_t> out;
  out.reserve(static_cast<size_t>(total));
  std::vector<int64_t> index(t.shape.size(), 0);
  for (int64_t n = 0; n < total; ++n) {
    int64_t at = t.offset;
    for (size_t d = 0; d < index.size(); ++d) at += index[d] * t.strides[d];
    out.push_back(type->load(member->second.data() + static_cast<size_t>(at) * type->size));
    for (size_t d = index.size(); d-- > 0;) {
      if (++index[d] < t.shape[d]) break;
      index[d] = 0;
    }
  }
  return out;
}

}  // namespace carpool
