import java.io.BufferedReader;
import java.io.DataInputStream;
import java.io.File;
import java.io.FileInputStream;
import java.io.BufferedInputStream;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import java.util.zip.CRC32;
import net.openhft.chronicle.bytes.Bytes;
import net.openhft.chronicle.bytes.SyncMode;
import net.openhft.chronicle.queue.ChronicleQueue;
import net.openhft.chronicle.queue.ExcerptAppender;
import net.openhft.chronicle.queue.ExcerptTailer;
import net.openhft.chronicle.queue.RollCycle;
import net.openhft.chronicle.queue.RollCycles;
import net.openhft.chronicle.queue.impl.single.SingleChronicleQueueBuilder;
import net.openhft.chronicle.wire.DocumentContext;

/**
 * One turn of Chronicle Queue: as benchmarks/race/turn.py, with the same values, answers and meanings.
 *
 * A record is its time in ms (8 bytes) and its value. The JVM is warmed before "ready".
 */
public final class ChronicleTurn {
    private static final RollCycle CYCLE = RollCycles.FAST_DAILY;
    private static final long BASE_MS = 1_700_000_000_000L;
    private static final double WARM_S = 0.7;
    private static final long PAUSE_NS = 500_000; // of a reader, as in benchmarks/race/peers/stamped.py

    private final Map<String, String> job = new HashMap<>();
    private final File where;
    private final List<byte[]> values = new ArrayList<>();
    private final long count;
    private final double seconds;
    private final boolean durable;
    private final int samples;
    private final boolean spin;

    private ChronicleTurn(String[] words) throws Exception {
        for (String word : Arrays.asList(words).subList(1, words.length)) {
            int at = word.indexOf('=');
            job.put(word.substring(0, at), word.substring(at + 1));
        }
        where = new File(job.get("where"));
        count = Long.parseLong(job.get("count"));
        seconds = Double.parseDouble(job.get("seconds"));
        durable = job.get("durable").equals("True");
        spin = job.get("spin").equals("True");
        samples = Integer.parseInt(job.get("samples"));
        try (DataInputStream file = new DataInputStream(new BufferedInputStream(new FileInputStream(job.get("values")), 1 << 20))) {
            while (true) {
                int first = file.read();
                if (first < 0) break;
                int size = first | file.read() << 8 | file.read() << 16 | file.read() << 24;
                byte[] value = new byte[size];
                file.readFully(value);
                values.add(value);
            }
        }
    }

    /** A queue whose clock is fixed, so that all records are in one cycle and a sequence number is an offset. */
    private ChronicleQueue open(File path) {
        return SingleChronicleQueueBuilder.binary(path).rollCycle(CYCLE).timeProvider(() -> BASE_MS).blockSize(256L << 20)
            .syncMode(durable ? SyncMode.SYNC : SyncMode.NONE).build();
    }

    private static void ready() throws Exception {
        System.out.println("ready");
        System.out.flush();
        String line = new BufferedReader(new InputStreamReader(System.in)).readLine();
        if (!"go".equals(line)) System.exit(1);
    }

    private static void write(ExcerptAppender appender, byte[] value, long timeMs) {
        try (DocumentContext context = appender.writingDocument()) {
            Bytes<?> bytes = context.wire().bytes();
            bytes.writeLong(timeMs);
            bytes.write(value);
        }
    }

    /** Appends values repeatedly until one of the limits; the times begin at firstMs, or are those of the clock if it is 0. */
    private long append(ChronicleQueue queue, long most, double within, long firstMs, long[] size) {
        long end = System.nanoTime() + (long) (within * 1e9), done = 0;
        try (ExcerptAppender appender = queue.createAppender()) {
            while (done < most && ((done & 127) != 0 || System.nanoTime() < end)) {
                byte[] value = values.get((int) (done % values.size()));
                write(appender, value, firstMs == 0 ? System.currentTimeMillis() : firstMs + done);
                size[0] += value.length;
                done++;
            }
        }
        return done;
    }

    private void warm() throws Exception {
        File path = new File(where.getPath() + "-warm");
        try (ChronicleQueue queue = open(path)) {
            append(queue, 400_000, WARM_S, 0, new long[1]);
            read(queue, 400_000, WARM_S, new long[1], null);
        }
        remove(path);
    }

    private static void remove(File path) throws Exception {
        File[] inside = path.listFiles();
        if (inside != null) for (File each : inside) remove(each);
        Files.deleteIfExists(path.toPath());
    }

    private static long stored(ChronicleQueue queue) {
        long last = queue.lastIndex();
        return last < 0 ? 0 : CYCLE.toSequenceNumber(last) + 1;
    }

    private void appends(boolean timed) throws Exception {
        if (!timed) warm();
        try (ChronicleQueue queue = open(where)) {
            ready();
            long[] size = new long[1];
            long began = System.nanoTime();
            long done = append(queue, count, seconds, timed ? BASE_MS : 0, size);
            long ended = System.nanoTime();
            answer("\"records\": %d, \"bytes\": %d, \"seconds\": %.9f, \"stored\": %d, \"began_ns\": %d, \"ended_ns\": %d",
                done, size[0], (ended - began) / 1e9, stored(queue), began, ended);
        }
    }

    private long read(ChronicleQueue queue, long most, double within, long[] size, CRC32 sum) {
        byte[] value = new byte[0];
        long end = System.nanoTime() + (long) (within * 1e9), done = 0;
        try (ExcerptTailer tailer = queue.createTailer()) {
            while (done < most && ((done & 127) != 0 || System.nanoTime() < end)) {
                try (DocumentContext context = tailer.readingDocument()) {
                    if (!context.isPresent()) break;
                    value = value(context, value);
                    size[0] += value.length;
                    if (sum != null) sum.update(value);
                }
                done++;
            }
        }
        return done;
    }

    /** The value of a record, in the buffer given if that has its size. */
    private static byte[] value(DocumentContext context, byte[] reused) {
        Bytes<?> bytes = context.wire().bytes();
        bytes.readLong();
        int size = (int) bytes.readRemaining();
        byte[] found = reused.length == size ? reused : new byte[size];
        bytes.read(found);
        return found;
    }

    private void reads(boolean verify) throws Exception {
        try (ChronicleQueue queue = open(where)) {
            CRC32 sum = verify ? new CRC32() : null;
            if (!verify) read(queue, 400_000, WARM_S, new long[1], null);
            ready();
            long[] size = new long[1];
            long began = System.nanoTime();
            long done = read(queue, count, verify ? 1e6 : seconds, size, sum);
            double took = (System.nanoTime() - began) / 1e9;
            answer("\"records\": %d, \"bytes\": %d, \"seconds\": %.9f, \"checksum\": %d, \"stored\": %d",
                done, size[0], took, verify ? sum.getValue() : 0, stored(queue));
        }
    }

    private static long timeAt(ExcerptTailer tailer, long index) {
        if (!tailer.moveToIndex(index)) throw new IllegalStateException("no index " + index);
        try (DocumentContext context = tailer.readingDocument()) {
            return context.wire().bytes().readLong();
        }
    }

    /** Point reads by offset, or by time: the time is found by halving the numbers. */
    private void points(boolean byTime) throws Exception {
        try (ChronicleQueue queue = open(where); ExcerptTailer tailer = queue.createTailer()) {
            long first = queue.firstIndex(), stored = stored(queue);
            Random random = new Random(1);
            long[] took = new long[samples];
            int warm = Math.min(5000, samples * 20);
            byte[] value = new byte[0];
            for (int at = -warm; at < samples; at++) {
                if (at == 0) ready();
                long wanted = (long) (random.nextDouble() * stored);
                long began = System.nanoTime();
                long found = byTime ? since(tailer, first, stored, BASE_MS + wanted) : wanted;
                if (!tailer.moveToIndex(first + found)) throw new IllegalStateException("no record " + found);
                try (DocumentContext context = tailer.readingDocument()) {
                    value = value(context, value);
                }
                if (at >= 0) took[at] = System.nanoTime() - began;
                if (!Arrays.equals(value, values.get((int) (wanted % values.size())))) throw new IllegalStateException("wrong value");
            }
            latencies(took);
        }
    }

    private static long since(ExcerptTailer tailer, long first, long stored, long timeMs) {
        long low = 0, high = stored;
        while (low < high) {
            long middle = (low + high) / 2;
            if (timeAt(tailer, first + middle) < timeMs) low = middle + 1;
            else high = middle;
        }
        return low;
    }

    private void acknowledged() throws Exception {
        warm();
        try (ChronicleQueue queue = open(where); ExcerptAppender appender = queue.createAppender()) {
            ready();
            long[] took = new long[samples];
            for (int at = 0; at < samples; at++) {
                long began = System.nanoTime();
                write(appender, values.get(at % values.size()), System.currentTimeMillis());
                took[at] = System.nanoTime() - began;
            }
            latencies(took);
        }
    }

    /** The threads share an appender: with one for each, a sync takes a second. */
    private void durable(int threads) throws Exception {
        try (ChronicleQueue queue = open(where); ExcerptAppender appender = queue.createAppender()) {
            appender.singleThreadedCheckDisabled(true);
            ready();
            AtomicLong done = new AtomicLong();
            long began = System.nanoTime(), end = began + (long) (seconds * 1e9);
            List<Thread> running = new ArrayList<>();
            for (int number = 0; number < threads; number++) {
                Thread thread = new Thread(() -> {
                    while (System.nanoTime() < end) {
                        synchronized (appender) {
                            write(appender, values.get(0), System.currentTimeMillis());
                            appender.sync();
                        }
                        done.incrementAndGet();
                    }
                });
                thread.start();
                running.add(thread);
            }
            for (Thread thread : running) thread.join();
            answer("\"records\": %d, \"seconds\": %.9f, \"stored\": %d", done.get(), (System.nanoTime() - began) / 1e9, stored(queue));
        }
    }

    private void tailWriter() throws Exception {
        try (ChronicleQueue queue = open(where); ExcerptAppender appender = queue.createAppender()) {
            ready();
            byte[] value = new byte[Integer.parseInt(job.get("record_bytes"))];
            for (int at = 0; at < samples; at++) {
                Thread.sleep(1);
                long now = System.nanoTime();
                for (int byteAt = 0; byteAt < 8; byteAt++) value[byteAt] = (byte) (now >>> (8 * byteAt));
                write(appender, value, System.currentTimeMillis());
            }
            answer("\"records\": %d", samples);
        }
    }

    private void tailReader() throws Exception {
        try (ChronicleQueue queue = open(where); ExcerptTailer tailer = queue.createTailer().toEnd()) {
            ready();
            long[] took = new long[samples];
            byte[] value = new byte[0];
            for (int at = 0; at < samples; ) {
                try (DocumentContext context = tailer.readingDocument()) {
                    if (!context.isPresent()) {
                        if (spin) Thread.onSpinWait();
                        else LockSupport.parkNanos(PAUSE_NS);
                        continue;
                    }
                    value = value(context, value);
                }
                long sent = 0;
                for (int byteAt = 7; byteAt >= 0; byteAt--) sent = sent << 8 | (value[byteAt] & 0xff);
                took[at++] = System.nanoTime() - sent;
            }
            latencies(Arrays.copyOfRange(took, samples / 10, samples));
        }
    }

    private static void latencies(long[] took) {
        Arrays.sort(took);
        answer("\"samples\": %d, \"p50_us\": %.3f, \"p99_us\": %.3f", took.length, took[took.length / 2] / 1e3,
            took[Math.min(took.length - 1, (int) (took.length * 0.99))] / 1e3);
    }

    private static void answer(String format, Object... parts) {
        System.out.println("{" + String.format(java.util.Locale.ROOT, format, parts) + "}");
        System.out.flush();
    }

    public static void main(String[] words) throws Exception {
        ChronicleTurn turn = new ChronicleTurn(words);
        switch (words[0]) {
            case "fill" -> turn.appends(true);
            case "verify" -> turn.reads(true);
            case "append/each", "append/batch", "append/columns", "processes" -> turn.appends(false);
            case "acknowledged" -> turn.acknowledged();
            case "durable" -> turn.durable(Integer.parseInt(turn.job.get("threads")));
            case "read/records", "read/columns" -> turn.reads(false);
            case "offset" -> turn.points(false);
            case "time" -> turn.points(true);
            case "tail/writer" -> turn.tailWriter();
            case "tail/reader" -> turn.tailReader();
            default -> throw new IllegalArgumentException(words[0]);
        }
    }
}
