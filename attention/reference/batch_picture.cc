#include "reprise/attention/reference/batch_picture.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "reprise/attention/visibility.h"

namespace reprise {
namespace {

constexpr char kIndent[] = "  ";

// Keys [begin, end) of a row, with a gap between blocks if they have more than one key.
struct Columns {
  int begin = 0;
  int end = 0;
  int64_t key_start = 0;
  int block_size = 1;

  bool EndsBlock(int key) const {
    return block_size > 1 && (key_start + key + 1) % block_size == 0 && key + 1 < end;
  }
  bool BeginsBlock(int key) const { return key == begin || (key_start + key) % block_size == 0; }
};

char MarkOf(const AttentionParams& layer, const BatchRow& row, int query, int key, int q_head) {
  const std::optional<int64_t> position = KeyPosition(layer, row, query, q_head, key);
  if (!position) return '.';
  const bool in_tail = row.tail_len > 0 && key >= row.seq_len - row.tail_len;
  return in_tail ? static_cast<char>('0' + *position % 10) : '#';
}

// Returns the heading: the position of the first key of each block, above the key's column. With
// blocks of one key, the position of every fifth key. Positions without room are omitted.
std::string Heading(const Columns& columns, const BatchRow& row) {
  std::string line;
  size_t at = 0;
  for (int key = columns.begin; key < columns.end; ++key) {
    const bool labelled =
        columns.block_size > 1 ? columns.BeginsBlock(key) : (key - columns.begin) % 5 == 0;
    if (labelled && line.size() <= at) {
      line.append(at - line.size(), ' ');
      absl::StrAppend(&line, OrdinaryKeyPosition(row, key), " ");
    }
    at += columns.EndsBlock(key) ? 2 : 1;
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

std::string QueryLine(const AttentionParams& layer, const BatchRow& row, int query,
                      const Columns& columns, int q_head) {
  std::string line = columns.begin > 0 ? "<" : "";
  for (int key = columns.begin; key < columns.end; ++key) {
    line += MarkOf(layer, row, query, key, q_head);
    if (columns.EndsBlock(key)) line += ' ';
  }
  return line;
}

std::string DrawRow(const AttentionParams& layer, const BatchRow& row, int block_size,
                    const PictureOptions& options) {
  if (row.seq_len == 0) return "";
  const Columns columns = {.begin = std::max(0, row.seq_len - options.max_columns),
                           .end = row.seq_len,
                           .key_start = row.key_start,
                           .block_size = block_size};
  std::string text = absl::StrFormat("%stoken  pos | %s%s\n", kIndent, columns.begin > 0 ? " " : "",
                                     Heading(columns, row));
  for (int query = 0; query < row.query_len; ++query) {
    absl::StrAppend(&text, absl::StrFormat("%s%5d %4d | %s\n", kIndent, row.first_token + query,
                                           QueryPosition(row, query),
                                           QueryLine(layer, row, query, columns, options.q_head)));
  }
  return text;
}

std::string Queries(int count) { return absl::StrCat(count, count == 1 ? " query" : " queries"); }

std::string Keys(int count) { return absl::StrCat(count, count == 1 ? " key" : " keys"); }

// Returns the blocks of the row's keys, with a dash for each block that no query of the row reads.
std::string Blocks(const PagedBatch& batch, const AttentionParams& layer, const BatchRow& row,
                   int block_size) {
  KeyRange read = {.begin = row.seq_len, .end = 0};
  for (int query = 0; query < row.query_len; ++query) {
    const KeyRange interval = KeyInterval(layer, row, query);
    if (interval.empty()) continue;
    read.begin = std::min(read.begin, interval.begin);
    read.end = std::max(read.end, interval.end);
  }
  std::string text;
  const int64_t last = (row.key_start + row.seq_len - 1) / block_size;
  for (int64_t column = row.key_start / block_size; column <= last; ++column) {
    const bool is_read = read.begin < read.end &&
                         column >= (row.key_start + read.begin) / block_size &&
                         column <= (row.key_start + read.end - 1) / block_size;
    const int32_t* entries = batch.block_table + row.table_row * batch.block_table_stride;
    is_read ? absl::StrAppend(&text, " ", entries[column]) : absl::StrAppend(&text, " -");
  }
  return text;
}

}  // namespace

std::string DrawBatch(const PagedBatch& batch, const AttentionParams& layer,
                      const PictureOptions& options) {
  std::string text;
  for (int r = 0; r < batch.num_rows; ++r) {
    const BatchRow row = RowOf(batch, r);
    if (row.query_len == 0) continue;
    absl::StrAppend(&text, "row ", r, ": ", Queries(row.query_len));
    if (row.seq_len == 0) {
      absl::StrAppend(&text, row.query_len == 1 ? " that sees no key\n" : " that see no key\n");
      continue;
    }
    absl::StrAppend(&text, " over ", Keys(row.seq_len), " of table row ", row.table_row);
    if (row.key_start > 0) absl::StrAppend(&text, " from ", row.key_start);
    absl::StrAppend(&text, ", blocks", Blocks(batch, layer, row, options.block_size), "\n",
                    DrawRow(layer, row, options.block_size, options));
  }
  return text;
}

std::string DrawBatch(const RaggedBatch& batch, const AttentionParams& layer,
                      const PictureOptions& options) {
  std::string text;
  for (int r = 0; r < batch.num_rows; ++r) {
    const BatchRow row = RowOf(batch, r);
    if (row.query_len == 0) continue;
    absl::StrAppend(&text, "row ", r, ": ", Queries(row.query_len));
    if (row.seq_len == 0) {
      absl::StrAppend(&text, row.query_len == 1 ? " that sees no key\n" : " that see no key\n");
      continue;
    }
    absl::StrAppend(&text, " over ", Keys(row.seq_len), ", rows ", row.first_key, " to ",
                    row.first_key + row.seq_len - 1, " of k\n", DrawRow(layer, row, 1, options));
  }
  return text;
}

}  // namespace reprise
