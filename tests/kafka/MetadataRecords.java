import java.util.ArrayList;
import java.util.Collections;
import java.util.HexFormat;
import java.util.List;
import java.util.Random;
import java.util.stream.Collectors;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.metadata.ConfigRecord;
import org.apache.kafka.common.metadata.NoOpRecord;
import org.apache.kafka.common.metadata.PartitionRecord;
import org.apache.kafka.common.metadata.RegisterBrokerRecord;
import org.apache.kafka.common.metadata.RemoveTopicRecord;
import org.apache.kafka.common.metadata.TopicRecord;
import org.apache.kafka.common.metadata.UnregisterBrokerRecord;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.protocol.types.RawTaggedField;
import org.apache.kafka.metadata.MetadataRecordSerde;
import org.apache.kafka.server.common.ApiMessageAndVersion;

/**
 * Random records of the decision log, serialized by Kafka's own MetadataRecordSerde, one JSON object per line: fields and the value
 * in hexadecimal digits. tests/data/metadata-records.jsonl.xz is the output for 400 records and seed 15.
 *
 *     java -cp "$(EMBEDLOG_ORACLE_DIR)/4.4.0/lib/*" tests/kafka/MetadataRecords.java 400 15 | xz -9e       (needs a JDK)
 *
 * A record that Kafka does not read back as it was is an error. Numbers above 9999 are tags of embedlog.
 */
public class MetadataRecords {
    static final String[] TEXTS = {"", "a", "orders", "größe-日本", "\uD83D\uDE00", "min.insync.replicas", "x".repeat(126), "y".repeat(127),
        "z".repeat(300)};
    static Random random;

    static int number() {
        int[] edges = {0, 1, 127, 128, 65535, Integer.MAX_VALUE};
        return random.nextBoolean() ? edges[random.nextInt(edges.length)] : random.nextInt(1000);
    }

    static String text() { return TEXTS[random.nextInt(TEXTS.length)]; }

    static Uuid id() { return new Uuid(0x0123456789abcdefL * (1 + random.nextInt(4)), 0xfedcba9876543210L + random.nextInt(4)); }

    static String shown(Uuid id) { return String.format("\"%016x%016x\"", id.getMostSignificantBits(), id.getLeastSignificantBits()); }

    static String shown(String text) { return text == null ? "null" : '"' + text + '"'; }

    static String shown(List<Uuid> ids) { return ids.stream().map(MetadataRecords::shown).collect(Collectors.joining(",", "[", "]")); }

    static RawTaggedField tag(int tag, byte[] data) { return new RawTaggedField(tag, data); }

    static byte[] bytes(Uuid id) {
        ByteBufferAccessor buffer = new ByteBufferAccessor(java.nio.ByteBuffer.allocate(16));
        buffer.writeUuid(id);
        return buffer.buffer().array();
    }

    static byte[] compact(String text) {
        byte[] data = text.getBytes(java.nio.charset.StandardCharsets.UTF_8);
        ByteBufferAccessor buffer = new ByteBufferAccessor(java.nio.ByteBuffer.allocate(data.length + 5));
        buffer.writeUnsignedVarint(data.length + 1);
        buffer.writeByteArray(data);
        return java.util.Arrays.copyOf(buffer.buffer().array(), buffer.buffer().position());
    }

    static byte[] raw(int number) { return java.nio.ByteBuffer.allocate(4).putInt(number).array(); }

    static List<Integer> some(List<Integer> among, int least) {
        List<Integer> chosen = new ArrayList<>(among);
        Collections.shuffle(chosen, random);
        return chosen.subList(0, Math.min(chosen.size(), least + random.nextInt(among.size() + 1)));
    }

    static List<Object> register() {
        boolean witness = random.nextInt(4) == 0, leaving = random.nextBoolean(), voter = random.nextBoolean();
        int node = number(), generation = number();
        long epoch = random.nextLong() >>> 1;
        Uuid incarnation = id(), directory = id();
        String rack = random.nextBoolean() ? null : text(), path = "/" + text();
        var record = new RegisterBrokerRecord().setBrokerId(node).setIncarnationId(incarnation).setBrokerEpoch(epoch).setRack(rack)
            .setFenced(false).setInControlledShutdown(leaving).setLogDirs(List.of(directory));
        if (witness) record.setCordonedLogDirs(List.of(directory));
        record.unknownTaggedFields().add(tag(10000, new byte[] {(byte) (voter ? 1 : 0)}));
        record.unknownTaggedFields().add(tag(10001, raw(generation)));
        record.unknownTaggedFields().add(tag(10002, compact(path)));
        String fields = String.format(
            "\"node\":%d,\"incarnation\":%s,\"broker_epoch\":%d,\"directory\":%s,\"rack\":%s,\"leaving\":%b,\"replicas\":%b,"
            + "\"voter\":%b,\"generation\":%d,\"path\":%s",
            node, shown(incarnation), epoch, shown(directory), shown(rack), leaving, !witness, voter, generation, shown(path));
        return List.of(new ApiMessageAndVersion(record, (short) (witness ? 4 : 3)), fields);
    }

    static List<Object> partition() {
        List<Integer> nodes = new ArrayList<>(random.ints(1 + random.nextInt(140), 0, 1 << 30).distinct().boxed().toList());
        if (random.nextInt(25) != 0) nodes = nodes.subList(0, Math.min(nodes.size(), 4));
        List<Integer> isr = some(nodes, 1), rest = new ArrayList<>(nodes), moving = some(nodes, 0);
        rest.removeAll(isr);
        List<Integer> elr = rest.isEmpty() ? List.of() : some(rest, 0), removing = moving.subList(0, moving.size() / 2);
        List<Integer> adding = moving.subList(moving.size() / 2, moving.size());
        List<Uuid> directories = nodes.stream().map(node -> id()).toList();
        int number = number(), leader = random.nextInt(4) == 0 ? -1 : isr.get(0), epoch = number(), change = number();
        boolean recovering = random.nextInt(4) == 0;
        Uuid topic = id(), incarnation = leader < 0 ? null : id();
        var record = new PartitionRecord().setPartitionId(number).setTopicId(topic).setReplicas(nodes).setIsr(isr).setRemovingReplicas(removing)
            .setAddingReplicas(adding).setLeader(leader).setLeaderEpoch(epoch).setPartitionEpoch(change).setDirectories(directories)
            .setLeaderRecoveryState((byte) (recovering ? 1 : 0));
        if (!elr.isEmpty()) record.setEligibleLeaderReplicas(elr);
        if (incarnation != null) record.unknownTaggedFields().add(tag(10000, bytes(incarnation)));
        String others = "[]";
        if (random.nextInt(4) == 0) {
            record.unknownTaggedFields().add(tag(20000, new byte[] {1, 2, 3}));
            others = "[[20000,\"010203\"]]";
        }
        String fields = String.format("\"topic_id\":%s,\"number\":%d,\"replicas\":%s,\"isr\":%s,\"removing\":%s,\"adding\":%s,\"leader\":%d,"
            + "\"leader_epoch\":%d,\"partition_epoch\":%d,\"directories\":%s,\"recovering\":%b,\"elr\":%s,\"leader_incarnation\":%s,\"others\":%s",
            shown(topic), number, nodes, isr, removing, adding, leader, epoch, change, shown(directories), recovering, elr,
            incarnation == null ? "null" : shown(incarnation), others);
        return List.of(new ApiMessageAndVersion(record, (short) 2), fields);
    }

    static List<Object> small() {
        Uuid topic = id();
        String name = text(), option = text(), value = random.nextBoolean() ? null : text();
        int node = number();
        switch (random.nextInt(5)) {
            case 0: return List.of(new ApiMessageAndVersion(new UnregisterBrokerRecord().setBrokerId(node).setBrokerEpoch(7L * node), (short) 0),
                String.format("\"node\":%d,\"broker_epoch\":%d", node, 7L * node));
            case 1: return List.of(new ApiMessageAndVersion(new TopicRecord().setName(name).setTopicId(topic), (short) 0),
                String.format("\"name\":%s,\"topic_id\":%s", shown(name), shown(topic)));
            case 2: return List.of(new ApiMessageAndVersion(new ConfigRecord().setResourceType((byte) 2).setResourceName(name).setName(option)
                .setValue(value), (short) 0),
                String.format("\"kind\":2,\"resource\":%s,\"name\":%s,\"value\":%s", shown(name), shown(option), shown(value)));
            case 3: return List.of(new ApiMessageAndVersion(new RemoveTopicRecord().setTopicId(topic), (short) 0),
                String.format("\"topic_id\":%s", shown(topic)));
            default: return List.of(new ApiMessageAndVersion(new NoOpRecord(), (short) 0), "");
        }
    }

    public static void main(String[] arguments) throws Exception {
        random = new Random(Long.parseLong(arguments[1]));
        var out = new java.io.PrintStream(System.out, true, "UTF-8");
        for (int count = 0; count < Integer.parseInt(arguments[0]); count++) {
            List<Object> made = switch (random.nextInt(5)) { case 0, 1 -> partition(); case 2 -> register(); default -> small(); };
            var message = (ApiMessageAndVersion) made.get(0);
            var cache = new ObjectSerializationCache();
            int size = MetadataRecordSerde.INSTANCE.recordSize(message, cache);
            var buffer = java.nio.ByteBuffer.allocate(size);
            MetadataRecordSerde.INSTANCE.write(message, cache, new ByteBufferAccessor(buffer));
            buffer.flip();
            var again = MetadataRecordSerde.INSTANCE.read(new ByteBufferAccessor(buffer.duplicate()), size);
            if (!again.equals(message)) throw new IllegalStateException("not read back: " + message);
            out.printf("{\"type\":%d,\"value\":\"%s\",\"fields\":{%s}}%n",
                message.message().apiKey(), HexFormat.of().formatHex(buffer.array()), made.get(1));
        }
    }
}
